"""The messages of a run's conversation: its own messages, and those of the runs that it continues.

A resumed run continues all of another run; a fork continues it up to a checkpoint. Messages are referenced, not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q

from runs.models import AgentRun, Checkpoint


class Segment(NamedTuple):
    """The part of a conversation that belongs to one run."""

    run_id: UUID
    #: Position of the last message; None for all messages of the run.
    upto: int | None = None
    #: The step of that message.
    step: int | None = None


class _Link(NamedTuple):
    """The run that a run continues: by a resume (the first field) or by a fork (the last three)."""

    resumed_from: UUID | None
    starts_fresh: bool
    forked_from: UUID | None
    forked_at_step: int | None
    #: Root of the lineage that this run was forked from.
    other_root: UUID


def segments_of(run: AgentRun) -> list[Segment]:
    """Return the segments of the conversation of `run`, oldest first, back to the newest fresh start.

    Sends one query for the lineage, and two for each fork on the way, but no query if the run continues no other.
    """
    segments = [Segment(run.pk)]
    # A recorded fork has no fork step, because the earlier messages are stored in the fork itself.
    if run.starts_fresh or (run.resumed_from_id is None and run.forked_at_step is None):
        return segments
    links = _links(run.root_run_id)
    while True:
        link = links[segments[-1].run_id]
        if link.starts_fresh:
            return segments[::-1]
        if link.resumed_from is not None:
            segments.append(Segment(link.resumed_from))
        elif link.forked_from is not None and link.forked_at_step is not None:
            checkpoint = Checkpoint.objects.get(run=link.forked_from, step_number=link.forked_at_step)
            segments.append(Segment(link.forked_from, checkpoint.last_message_position, link.forked_at_step))
            links = _links(link.other_root)
        else:
            return segments[::-1]


def within(segments: Sequence[Segment], *, of: str = "") -> Q:
    """Return the condition for messages of these segments. `of` is the lookup path to the message ("message__")."""
    # One list of the runs whose messages all count, which may be hundreds, and one condition for each fork.
    condition = Q(**{f"{of}run__in": [segment.run_id for segment in segments if segment.upto is None]})
    for segment in segments:
        if segment.upto is not None:
            condition |= Q(**{f"{of}run": segment.run_id, f"{of}position__lte": segment.upto})
    return condition


def checkpoint_of(run: AgentRun, *, step: int | None = None, checkpoint_id: UUID | None = None) -> Checkpoint | None:
    """Return the checkpoint of this step, or with this ID, in the conversation; None if it does not exist."""
    upto = _ends_of(segments_of(run))
    rows = Checkpoint.objects.filter(run__in=list(upto))
    rows = rows.filter(step_number=step) if step is not None else rows.filter(pk__in=[checkpoint_id])
    return next((row for row in rows if _is_within(row.last_message_position, upto[row.run_id])), None)


def steps_of(run: AgentRun, limit: int) -> list[int]:
    """Return the steps of the conversation that have a checkpoint, newest first."""
    upto = _ends_of(segments_of(run))
    rows = Checkpoint.objects.filter(run__in=list(upto)).order_by("-step_number")
    checkpoints = rows.values_list("run", "step_number", "last_message_position")
    return [step for run_id, step, position in checkpoints if _is_within(position, upto[run_id])][:limit]


def _ends_of(segments: Sequence[Segment]) -> dict[UUID, int | None]:
    """Return the position of the last message of each segment, by the ID of its run."""
    return {segment.run_id: segment.upto for segment in segments}


def _is_within(position: int, upto: int | None) -> bool:
    return upto is None or position <= upto


def _links(root_id: UUID) -> dict[UUID, _Link]:
    """Return the link of each run of a lineage, by run ID."""
    columns = ("pk", "resumed_from", "starts_fresh", "forked_from", "forked_at_step", "forked_from__root_run")
    rows = AgentRun.objects.filter(root_run=root_id).values_list(*columns)
    return {run_id: _Link(*rest) for run_id, *rest in rows}
