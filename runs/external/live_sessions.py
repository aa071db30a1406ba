"""Imported sessions whose programs are still at work: what of them is known, and when they wait for their user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from agentops.projects.models import Project
from runs.external import handlers
from runs.external.event_input import IncomingEvent
from runs.external.import_runs import ImportReport, import_items, open_answer
from runs.external.importers.base import Item
from runs.external.projection import Projection
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus, WaitReason
from timeline import log
from timeline.events.run import RunWaiting
from timeline.models import Source

#: Event IDs of one query.
CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class KnownEvents:
    """Which events of a run are stored."""

    event_ids: frozenset[str] = frozenset()
    #: The ID of the event before the answer that is being received, if there is one.
    open_id: str | None = None


def known_events(project: Project, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
    """Return which of these events the imported run has; none if there is no such run."""
    run_id = _imported(project, run_ref).values_list("pk", flat=True).first()
    if run_id is None:
        return KnownEvents()
    stored: dict[str, tuple[int, bytes | None]] = {}
    for start in range(0, len(event_ids), CHUNK):
        stored |= log.stored_event_ids(run_id, event_ids[start : start + CHUNK])
    return KnownEvents(frozenset(stored), open_answer(run_id, stored))


def store(project: Project, items: Sequence[Item], *, by: str) -> ImportReport:
    """Store what is new in sessions that go on, all or nothing. Raises `RejectedEvent` or `NotImported`."""
    try:
        return import_items(project, items, by=by, is_live=True)
    except IntegrityError:
        # Two requests opened a run at once: it exists now.
        return import_items(project, items, by=by, is_live=True)


@transaction.atomic
def let_wait(project: Project, run_ref: str, *, with_open_calls: bool = False) -> bool:
    """Set a running session to waiting, because nothing was heard of it. Return whether it is not running any more.

    A session whose tool may still be at work keeps running, unless `with_open_calls`: then the outcome of its open
    calls is unknown.
    """
    run = _imported(project, run_ref).select_for_update(no_key=True, of=("self",)).first()
    if run is None or run.state is not RunStatus.RUNNING:
        return True
    run.project = project
    projection = Projection.load(run, Source.IMPORT)
    open_calls = AgentRunToolCall.objects.filter(run=run, result_message=None)
    if projection.state.answer_from_seq is not None or (not with_open_calls and open_calls.exists()):
        return False
    changed = open_calls.update(status=ToolStatus.UNKNOWN, starts=1, started_at=Coalesce("started_at", F("created_at")))
    waiting = RunWaiting(reason=WaitReason.UNKNOWN_TOOL if changed else WaitReason.INPUT)
    last = log.events_of(run.pk).order_by("-seq").first()
    handlers.apply(
        projection, IncomingEvent(run_ref, waiting.event_type, waiting, ts=last.ts if last is not None else None)
    )
    projection.flush()
    projection.save_state()
    log.note_last_event(run.pk, last.ts if last is not None else None)
    return True


def _imported(project: Project, run_ref: str) -> QuerySet[AgentRun]:
    return AgentRun.objects.filter(project=project, external_id=run_ref, source=AgentRun.Source.IMPORT)
