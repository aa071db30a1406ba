"""Sub-agents of a session: child runs reported by the program of their run. They end with it at the latest."""

from __future__ import annotations

from uuid import UUID

from runs.lifecycle import reported_runs
from runs.models import AgentRun, AgentRunToolCall
from runs.models.querysets import RunQuerySet
from runs.statuses import TERMINAL, RunStatus
from timeline import log
from timeline.events.child import ChildRunCompleted
from timeline.events.run import RunStopped
from timeline.log import Entry
from timeline.models import Phase, Source

#: The prefix of the external IDs of these runs.
PREFIX = "subagent:"
#: The provider whose runs have sub-agents.
_PROVIDER = "claude_cli"


def run_ref(run_id: UUID, call_id: str) -> str:
    """Return the external ID of the run of the sub-agent that works for a call."""
    return f"{PREFIX}{run_id}:{call_id}"[:200]


def subagents_of(run: AgentRun) -> RunQuerySet:
    """Return the runs of all sub-agents of a session's run, including nested ones."""
    return AgentRun.objects.filter(project=run.project_id, external_id__startswith=run_ref(run.pk, ""))


def is_subagent(run: AgentRun) -> bool:
    """Whether the run belongs to a sub-agent of a session that a worker holds."""
    return run.source == AgentRun.Source.IMPORT and (run.external_id or "").startswith(PREFIX)


def is_of_session(run: AgentRun) -> bool:
    """Whether the run is a session of a program, or belongs to a sub-agent of a session."""
    return run.agent_config.get("provider") == _PROVIDER or is_subagent(run)


def end_all(run: AgentRun, *, source: Source, epoch: int | None) -> None:
    """Stop the sub-agents of a run that ends or pauses, in the transaction of its move.

    The worker that held their program may have died, and possibly no other worker claims the run again. Runs without a
    session need no query.
    """
    if run.agent_config.get("provider") != _PROVIDER:
        return
    unended = subagents_of(run).exclude(status__in=TERMINAL)
    if not unended.exists():
        return
    # Before their rows, in the same order as the worker that stores their lines: see runs.external.sessions.
    log.lock(run.pk)
    for child in unended.select_for_update(no_key=True, of=("self",)).order_by("pk"):
        entry = Entry(RunStopped(reason="session_ended"), phase=Phase.STOPPED)
        # Written like a report of its program: no worker writes to it.
        reported_runs.report(child, RunStatus.STOPPED, entry, source=Source.IMPORT, reason="session_ended")
        call = AgentRunToolCall.objects.filter(run=run, child_run=child).first()
        if call is not None:
            log.append(run.pk, [completed_event(child, call)], source=source, epoch=epoch)


def completed_event(child: AgentRun, call: AgentRunToolCall) -> Entry:
    """Return the event of the end of a sub-agent, for the log of the calling run."""
    payload = ChildRunCompleted(
        run_id=str(child.pk), agent=str(child.agent_config.get("agent_id")), call_id=call.call_id,
        status=child.status, summary=child.summary or None, steps=child.step_count,
        cost_usd=None if child.cost_usd is None else str(child.cost_usd),
    )  # fmt: skip
    return Entry(payload, step=call.step_number, ref_id=child.pk)
