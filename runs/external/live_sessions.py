"""Imported sessions whose programs are still running: which of their events are stored, and when they wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db import transaction
from django.db.models import QuerySet

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.database_errors import done_alone
from runs.external import child_runs, handlers
from runs.external.event_input import IncomingEvent
from runs.external.import_runs import (
    ImportReport,
    import_items,
    open_answer,
    retry_conflicts,
    wait_reason_after_silence,
)
from runs.external.import_states import note_import
from runs.external.importers.base import Item
from runs.external.model_calls import chunks
from runs.external.projection import Projection
from runs.models import AgentRun, AgentRunToolCall
from runs.models.querysets import CLAIMED_FROM
from runs.statuses import RunStatus, WaitReason
from timeline import log
from timeline.events import Payload
from timeline.events.run import RunCompleted, RunFailed, RunWaiting
from timeline.models import Source

#: Time without an event after which no watcher follows a session any more. A watcher that starts skips older files.
FORGOTTEN = timedelta(hours=24)
#: Sessions that are set to waiting in one call.
BATCH = 100


@dataclass(frozen=True, slots=True)
class KnownEvents:
    """Which of some events of a run are stored."""

    event_ids: frozenset[str] = frozenset()
    #: The ID of the event that begins the run's incomplete answer, if it has one.
    open_id: str | None = None


def known_events(project: Project, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
    """Return which of these events an imported run has; none if the run does not exist."""
    run_id = _imported(project, run_ref).values_list("pk", flat=True).first()
    if run_id is None:
        return KnownEvents()
    stored: dict[str, tuple[int, bytes | None]] = {}
    for some in chunks(event_ids):
        stored |= log.stored_event_ids(run_id, some)
    return KnownEvents(frozenset(stored), open_answer(run_id, stored))


def store(project: Project, items: Sequence[Item], *, by: str) -> ImportReport:
    """Store the new events of running sessions, all or nothing. Adds a new session to the list of imports.

    Raises `RejectedEvent` or `NotImported`. After `ImportHindered`, a subclass of it, a later call may succeed.
    """
    return retry_conflicts(partial(_store, project, items, by=by))


@transaction.atomic
def _store(project: Project, items: Sequence[Item], *, by: str) -> ImportReport:
    report = import_items(project, items, by=by, is_live=True)
    # One entry for each session: later items may be of its sub-agents only, which are not listed.
    if report.runs and report.runs[0].pk in report.opened:
        note_import(project, report, name=str(report.runs[0].external_id), by=by)
    return report


def let_forgotten_wait() -> int:
    """Set sessions to waiting that no watcher follows any more: see `FORGOTTEN`. Return their number."""
    forgotten = AgentRun.objects.select_related("project").filter(
        source=AgentRun.Source.IMPORT,
        status=RunStatus.RUNNING,
        # Redundant, but needed for the planner to use the partial index `run_order`.
        status__in=CLAIMED_FROM,
        log__last_event_at__lt=database_clock.now() - FORGOTTEN,
    )
    sessions = [(run.project, str(run.external_id)) for run in forgotten[:BATCH]]
    failure = "a session that no watcher follows could not be set to waiting"
    act = partial(let_wait, with_open_calls=True, ends_answer=True)
    return sum(done_alone(partial(act, project, run_ref), failure) for project, run_ref in sessions)


@transaction.atomic
def let_wait(project: Project, run_ref: str, *, with_open_calls: bool = False, ends_answer: bool = False) -> bool:
    """Set a silent running session to waiting. Return False if the session still runs.

    A session with an open tool call still runs, unless `with_open_calls`: then the outcomes of its open calls become
    unknown. A session with an incomplete answer also still runs, unless `ends_answer`.
    """
    run = _imported(project, run_ref).select_for_update(no_key=True, of=("self",)).first()
    if run is None or run.state is not RunStatus.RUNNING:
        return True
    run.project = project
    projection = Projection.load(run, Source.IMPORT)
    last = log.events_of(run.pk).order_by("-seq").first()
    at = last.ts if last is not None else None
    if ends_answer:
        projection.close_answer(at)
        projection.flush()
    open_calls = AgentRunToolCall.objects.filter(run=run, result_message=None)
    if projection.state.answer_from_seq is not None or (not with_open_calls and open_calls.exists()):
        return False
    status = _status(run, wait_reason_after_silence(run))
    handlers.apply(projection, IncomingEvent.of(run_ref, status, ts=at))
    projection.flush()
    projection.save_state()
    log.note_last_event(run.pk, at)
    return True


def _status(run: AgentRun, reason: WaitReason) -> Payload:
    """Return the event that a session waits, or that a sub-agent whose call has ended has ended."""
    match child_runs.end_of(run):
        case RunStatus.COMPLETED:
            return RunCompleted()
        case RunStatus.FAILED:
            return RunFailed(error_type="failed")
    return RunWaiting(reason=reason)


def _imported(project: Project, run_ref: str) -> QuerySet[AgentRun]:
    return AgentRun.objects.filter(project=project, external_id=run_ref, source=AgentRun.Source.IMPORT)
