"""Ends external runs whose program reports no end: an operator stops the recording, or the run is abandoned.

A run is abandoned after days without an event. Its next event reopens it (see runs.external.handlers); a run whose
recording was stopped is not reopened. Before, the silence of a run is noted, so that pages show it.
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
from runs.agents.policies import Trigger
from runs.database_errors import done_alone
from runs.errors import RunNotFound
from runs.external.projection import Projection
from runs.lifecycle import children, reported_runs, session_subagents
from runs.lifecycle.inbox import PostResult
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunToolCall, ExternalRun
from runs.models.querysets import CLAIMED_FROM
from runs.statuses import RunStatus, ToolStatus
from timeline import log
from timeline.events.notice import PolicyApplied
from timeline.events.run import RunStopped
from timeline.log import Entry
from timeline.models import RunKind, Source
from timeline.reasons import ABANDONED, RECORDING_STOPPED

#: Maximum runs that one call ends, or whose silence it notes.
BATCH = 100


def stop(actor: Actor, run: AgentRun, *, key: str | None = None) -> PostResult:
    """Stop a run that this site executes, or stop the recording of an external run and of its external child runs.

    The program of an external run is not stopped, because it runs elsewhere. `key`: makes the stop of a run of this
    site idempotent.
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
    """End an external run and its external child runs. Raises `RunNotFound` or `Conflict`."""
    run = _locked(run_id)
    if run is None:
        raise RunNotFound(f"no run {run_id}")
    if session_subagents.is_subagent(run):
        text = "a sub-agent ends with its session: stop its parent run"
        raise Conflict(text, code="run_is_external", run_status=run.status)
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
    """End external runs that had no event for AGENTOPS_ABANDON_DAYS, and return their number."""
    if not settings.AGENTOPS_ABANDON_DAYS:
        return 0
    before = database_clock.now() - timedelta(days=settings.AGENTOPS_ABANDON_DAYS)
    silent = AgentRun.objects.being_recorded().silent_since(before)
    # A sub-agent of a session on this site may wait this long for a person. It ends with the session.
    silent = silent.exclude(external_id__startswith=session_subagents.PREFIX)
    failure = "an abandoned run could not be ended"
    run_ids = list(silent.values_list("pk", flat=True)[:BATCH])
    return sum(done_alone(partial(_abandon, run_id, before), failure, run_id=str(run_id)) for run_id in run_ids)


@transaction.atomic
def _abandon(run_id: UUID, before: datetime) -> bool:
    """End a run as abandoned. Return False if it has ended, has a new event, or is locked by another process."""
    run = _locked(run_id, skip_locked=True)
    if run is None or run.state.terminal or not AgentRun.objects.filter(pk=run_id).silent_since(before).exists():
        return False
    _end(run, RunStopped(reason=ABANDONED), Source.POLICY)
    return True


def _locked(run_id: UUID, *, skip_locked: bool = False) -> AgentRun | None:
    rows = AgentRun.objects.select_for_update(no_key=True, of=("self",), skip_locked=skip_locked)
    return rows.filter(pk=run_id).select_related("project").first()


def _end(run: AgentRun, stopped: RunStopped, source: Source) -> None:
    """End a run at the time of its last event, which counts for its duration and its retention."""
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


def notice_silence() -> int:
    """Note which running external runs had no event for AGENTOPS_SILENCE_S, and return their number.

    The silence of a run is noted once, until its runner sends events again.
    """
    before = database_clock.now() - timedelta(seconds=settings.AGENTOPS_SILENCE_S)
    silent = AgentRun.objects.filter(
        source=AgentRun.Source.EXTERNAL,
        status=RunStatus.RUNNING,
        # Redundant, but needed for the planner to use the partial index `run_order`.
        status__in=CLAIMED_FROM,
        external__silent_since=None,
        log__last_event_at__lt=before,
    )
    return sum(_note_silence(run_id, before) for run_id in silent.values_list("pk", flat=True)[:BATCH])


@transaction.atomic
def _note_silence(run_id: UUID, before: datetime) -> bool:
    """Note the silence of a run in its row and in its log.

    Returns False if it no longer runs, has a new event, or is locked by another process.
    """
    rows = AgentRun.objects.select_for_update(no_key=True, of=("self",), skip_locked=True)
    run = rows.filter(pk=run_id, status=RunStatus.RUNNING).first()
    if run is None:
        return False
    since = log.last_event_at(run_id)
    is_new = since is not None and since < before
    if not is_new or not ExternalRun.objects.filter(run=run, silent_since=None).update(silent_since=since):
        return False
    event = PolicyApplied(trigger=Trigger.ON_IDLE, silent_since=since)
    log.append(run_id, [Entry(event)], source=Source.POLICY, run_kind=RunKind(run.run_kind))
    return True
