"""Where the conversation of a run comes from: its own messages, those of the runs that it resumes, and those of the run
that it was forked from, up to the checkpoint.

Nothing is copied: a fork refers to what was said before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q

from runs.models import AgentRun, Checkpoint


class Segment(NamedTuple):
    """The messages of one run, as far as they belong to the conversation."""

    run_id: UUID
    #: The position of the last one; None for all of them.
    upto: int | None = None


class _Link(NamedTuple):
    """What a run continues; the last two are there where it was forked."""

    resumed_from: UUID | None
    starts_fresh: bool
    forked_from: UUID | None
    forked_at_step: int
    #: The root of the run that it was forked from.
    other_root: UUID


def segments_of(run: AgentRun) -> list[Segment]:
    """What the conversation of `run` is made of, oldest first, back to its beginning or the newest fresh start.

    One query for its lineage, and two more for each fork on the way.
    """
    segments = [Segment(run.pk)]
    links = _links(run.root_run_id)
    while True:
        link = links[segments[-1].run_id]
        if link.starts_fresh:
            return segments[::-1]
        if link.resumed_from is not None:
            segments.append(Segment(link.resumed_from))
        elif link.forked_from is not None:
            places = Checkpoint.objects.filter(run=link.forked_from, step_number=link.forked_at_step)
            segments.append(Segment(link.forked_from, places.values_list("last_message_position", flat=True).get()))
            links = _links(link.other_root)
        else:
            return segments[::-1]


def within(segments: Sequence[Segment], *, of: str = "") -> Q:
    """The rows of messages that belong to these segments; `of`: the way to a message from other rows ("message__")."""
    # One list of those that count whole, of which there may be hundreds, and a condition for each that was forked.
    condition = Q(**{f"{of}run__in": [segment.run_id for segment in segments if segment.upto is None]})
    for segment in segments:
        if segment.upto is not None:
            condition |= Q(**{f"{of}run": segment.run_id, f"{of}position__lte": segment.upto})
    return condition


def checkpoint_of(run: AgentRun, *, step: int | None = None, checkpoint_id: UUID | None = None) -> Checkpoint | None:
    """The checkpoint of the conversation after this step, or with this id; None where it has none such."""
    upto = dict(segments_of(run))
    rows = Checkpoint.objects.filter(run__in=list(upto))
    rows = rows.filter(step_number=step) if step is not None else rows.filter(pk__in=[checkpoint_id])
    return next((row for row in rows if _belongs(row.last_message_position, upto[row.run_id])), None)


def steps_of(run: AgentRun, limit: int) -> list[int]:
    """The steps of the conversation that have a checkpoint, the newest first."""
    upto = dict(segments_of(run))
    rows = Checkpoint.objects.filter(run__in=list(upto)).order_by("-step_number")
    checkpoints = rows.values_list("run", "step_number", "last_message_position")
    return [step for run_id, step, position in checkpoints if _belongs(position, upto[run_id])][:limit]


def _belongs(position: int, upto: int | None) -> bool:
    return upto is None or position <= upto


def _links(root_id: UUID) -> dict[UUID, _Link]:
    columns = ("pk", "resumed_from", "starts_fresh", "forked_from", "forked_at_step", "forked_from__root_run")
    rows = AgentRun.objects.filter(root_run=root_id).values_list(*columns)
    return {run_id: _Link(*rest) for run_id, *rest in rows}
