"""Ends recorded runs whose programs do not end them: an operator stops the recording, or the run is silent for days.

An abandoned run is reopened by its next event (see runs.external.handlers). A stopped recording is not.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import transaction

from agentops.accounts.audit import Actor, name_of, record
from agentops.base import database_clock
from agentops.base.refusals import Conflict
from runs.actions import run_actions
from runs.actions.run_actions import RunAuditAction
from runs.database_errors import done_alone
from runs.errors import RunNotFound
from runs.external.projection import Projection
from runs.lifecycle import children, reported_runs, session_subagents
from runs.lifecycle.inbox import PostResult
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from timeline import log
from timeline.events.run import RunStopped
from timeline.log import Entry
from timeline.models import Source
from timeline.reasons import ABANDONED, RECORDING_STOPPED

#: Runs that are ended in one call.
BATCH = 100


def stop(actor: Actor, run: AgentRun, *, key: str | None = None) -> PostResult:
    """Stop a run that this site executes, or stop the recording of any other run and of its recorded child runs.

    The program of a recorded run is not stopped, because it runs elsewhere. `key` makes the stop of a native run
    idempotent.
    """
    if not run.is_recorded:
        return run_actions.stop(actor, run, key=key)
    with transaction.atomic():
        result = _stop_recording(run.pk, by=name_of(actor))
        if result.is_new:
            before, after = {"status": result.status_before.value}, {"status": result.run.status, "asked": "stop"}
            record(actor, RunAuditAction.RUN_STOPPED, project=run.project, obj=run, before=before, after=after)
    return result


def _stop_recording(run_id: UUID, *, by: str) -> PostResult:
    run = _locked(run_id)
    if run is None:
        raise RunNotFound(f"no run {run_id}")
    if session_subagents.is_subagent(run):
        raise Conflict(
            "a sub-agent ends with its session: stop its parent run", code="run_is_external", run_status=run.status
        )
    status_before = run.state
    if status_before is RunStatus.STOPPED:
        return PostResult(run, status_before)
    if status_before.terminal:
        raise Conflict(f"the recording has ended: the run is {run.status}", code="run_terminal", run_status=run.status)
    for each in (run, *map(_locked, [child.pk for child in children.recorded_below([run.pk])])):
        if each is not None and not each.state.terminal:
            _end(each, RunStopped(reason=RECORDING_STOPPED, by=by), Source.WEB)
    return PostResult(run, status_before, is_new=True)


def end_abandoned() -> int:
    """End recorded runs without an event for AGENTOPS_ABANDON_DAYS, and return their number."""
    if not settings.AGENTOPS_ABANDON_DAYS:
        return 0
    before = database_clock.now() - timedelta(days=settings.AGENTOPS_ABANDON_DAYS)
    # A sub-agent of a session on this site may wait this long for a person. It ends with the session.
    silent = (
        AgentRun.objects.being_recorded().silent_since(before).exclude(external_id__startswith=session_subagents.PREFIX)
    )
    what = "a run of which nothing comes could not be ended"
    run_ids = list(silent.values_list("pk", flat=True)[:BATCH])
    return sum(done_alone(partial(_abandon, run_id, before), what, run_id=str(run_id)) for run_id in run_ids)


@transaction.atomic
def _abandon(run_id: UUID, before: datetime) -> bool:
    """End a run as abandoned. Return False if it has ended, or if a concurrent event or worker changed it."""
    run = _locked(run_id, skip_locked=True)
    if run is None or run.state.terminal or not AgentRun.objects.filter(pk=run_id).silent_since(before).exists():
        return False
    _end(run, RunStopped(reason=ABANDONED), Source.POLICY)
    return True


def _locked(run_id: UUID, *, skip_locked: bool = False) -> AgentRun | None:
    rows = AgentRun.objects.select_for_update(no_key=True, of=("self",), skip_locked=skip_locked)
    return rows.filter(pk=run_id).select_related("project").first()


def _end(run: AgentRun, stopped: RunStopped, source: Source) -> None:
    """End a run at the time of its last event, so that its duration and its retention count from that event."""
    is_final = stopped.reason != ABANDONED
    last_at = log.last_event_at(run.pk)
    projection = Projection.load(run, source)
    projection.close_answer(last_at)
    projection.flush()
    if not is_final:
        AgentRunToolCall.objects.filter(run=run, status=ToolStatus.RUNNING).update(status=ToolStatus.UNKNOWN)
    entry = Entry(stopped, phase=PHASES[RunStatus.STOPPED])
    reason = stopped.reason or ""
    reported_runs.report(run, RunStatus.STOPPED, entry, source=source, reason=reason, at=last_at, is_final=is_final)
    projection.save_state()
    log.note_last_event(run.pk, last_at)
