"""Imported sessions whose programs are still running: their known events, and when they wait for their user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.database_errors import done_alone
from runs.external import child_runs, handlers
from runs.external.event_input import IncomingEvent
from runs.external.import_runs import ImportReport, again_if_opened, import_items, open_answer
from runs.external.importers.base import Item
from runs.external.projection import Projection
from runs.external.uploads.finished_imports import note_import
from runs.models import AgentRun, AgentRunToolCall
from runs.models.querysets import CLAIMED_FROM
from runs.statuses import RunStatus, ToolStatus, WaitReason
from timeline import log
from timeline.events import Payload
from timeline.events.run import RunCompleted, RunFailed, RunWaiting
from timeline.models import Source

#: Event IDs per query.
CHUNK = 1_000
#: Time without an event after which a session counts as unwatched. `watch` also skips files older than this at start.
FORGOTTEN = timedelta(hours=24)
#: Sessions that are set to waiting in one call.
BATCH = 100


@dataclass(frozen=True, slots=True)
class KnownEvents:
    """The stored events of a run."""

    event_ids: frozenset[str] = frozenset()
    #: The ID of the event before the answer in progress, if any.
    open_id: str | None = None


def known_events(project: Project, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
    """Return which of these events the imported run has; none if the run does not exist."""
    run_id = _imported(project, run_ref).values_list("pk", flat=True).first()
    if run_id is None:
        return KnownEvents()
    stored: dict[str, tuple[int, bytes | None]] = {}
    for start in range(0, len(event_ids), CHUNK):
        stored |= log.stored_event_ids(run_id, event_ids[start : start + CHUNK])
    return KnownEvents(frozenset(stored), open_answer(run_id, stored))


def store(project: Project, items: Sequence[Item], *, by: str) -> ImportReport:
    """Store the new events of running sessions, all or nothing. Raises `RejectedEvent` or `NotImported`.

    After its subclass `ImportHindered`, a later call may succeed. A session without stored events is added to the list
    of imports.
    """
    return again_if_opened(partial(_store, project, items, by=by))


@transaction.atomic
def _store(project: Project, items: Sequence[Item], *, by: str) -> ImportReport:
    report = import_items(project, items, by=by, is_live=True)
    # Once per session: its later sub-agents, which can start at any time, are not listed.
    if report.runs and report.runs[0].pk in report.opened:
        note_import(project, report, name=str(report.runs[0].external_id), by=by)
    return report


def let_forgotten_wait() -> int:
    """Set sessions to waiting that sent no event for a day, because no watcher follows them. Return their number.

    A watcher that starts again skips files that have not changed for this time.
    """
    forgotten = AgentRun.objects.select_related("project").filter(
        source=AgentRun.Source.IMPORT,
        status=RunStatus.RUNNING,
        # Redundant, but needed for the planner to use the partial index `run_order`.
        status__in=CLAIMED_FROM,
        log__last_event_at__lt=database_clock.now() - FORGOTTEN,
    )
    found = [(run.project, str(run.external_id)) for run in forgotten[:BATCH]]
    what = "a session that nobody follows could not be set to waiting"
    return sum(done_alone(partial(let_wait, *names, with_open_calls=True, ends_answer=True), what) for names in found)


@transaction.atomic
def let_wait(project: Project, run_ref: str, *, with_open_calls: bool = False, ends_answer: bool = False) -> bool:
    """Set a silent running session to waiting. Return False if it still runs.

    A session with an open tool call keeps running, unless `with_open_calls`: then the outcome of its open calls is
    unknown. A session with an answer in progress also keeps running, unless `ends_answer`.
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
    changed = open_calls.update(status=ToolStatus.UNKNOWN, starts=1, started_at=Coalesce("started_at", F("created_at")))
    status = _status(run, WaitReason.UNKNOWN_TOOL if changed else WaitReason.INPUT)
    handlers.apply(projection, IncomingEvent(run_ref, status.event_type, status, ts=at))
    projection.flush()
    projection.save_state()
    log.note_last_event(run.pk, at)
    return True


def _status(run: AgentRun, reason: WaitReason) -> Payload:
    """Return a waiting status for a session, or the end of a sub-agent whose call has ended."""
    match child_runs.end_of(run):
        case RunStatus.COMPLETED:
            return RunCompleted()
        case RunStatus.FAILED:
            return RunFailed(error_type="failed")
    return RunWaiting(reason=reason)


def _imported(project: Project, run_ref: str) -> QuerySet[AgentRun]:
    return AgentRun.objects.filter(project=project, external_id=run_ref, source=AgentRun.Source.IMPORT)
