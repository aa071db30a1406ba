"""Calls of `spawn_agents` and `handoff`: open child runs, wait for them without a worker, and return their results as
the result of the call. A paused child is a result too, unless the call, or else the agent, says `wait`.

Children are opened in the transaction in which the run begins to wait. Afterwards the call is `running`, and the worker
that claims the run next finds its children by the events `child_run.started`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from pydantic import JsonValue

from agentops.accounts.names import UUID_PATTERN
from agentops.base import database_clock
from agentops.base.refusals import Refusal
from runs import chaos
from runs.actions import resume as resuming
from runs.conversation import tool_starts
from runs.conversation.tool_results import CallResult
from runs.engine.drive import Drive
from runs.engine.releases import DecideAgain, release_run
from runs.engine.results import Progress, SpawnRefused
from runs.engine.turns import open_call
from runs.lifecycle import children as child_runs
from runs.lifecycle import creation, inbox
from runs.lifecycle.creation import Opening, Origin
from runs.models import Agent, AgentRun, AgentRunToolCall
from runs.providers.messages import canonical
from runs.queries.durations import times_of
from runs.statuses import OnChildPause, RunStatus, ToolStatus, WaitReason
from runs.tools.agent_tools import AgentTask, SpawnRequest, request_of
from runs.tools.base import BadArguments, Tool
from timeline import log
from timeline.display import preview
from timeline.events import EventType
from timeline.events.run import RunWaiting
from timeline.events.work import ChildRunCompleted, ChildRunPhase, ChildRunStarted, Handoff
from timeline.log import Entry
from timeline.models import Event, Source

STOP_OR_PAUSE = frozenset({inbox.Type.STOP, inbox.Type.PAUSE})
TIMED_OUT = "timed_out"


class _Refused(Exception):
    """The request cannot be carried out. The message gives the model the reason; nothing was written."""


def tool_of_next_call(drive: Drive) -> Tool | None:
    """Return the tool of the next open call, if it spawns child runs."""
    call = drive.open_calls[0] if drive.open_calls else None
    tool = drive.toolset.get(call.tool_name) if call is not None else None
    if call is None or tool is None or not tool.spawns or open_call.why_not_run(drive, call):
        return None
    return tool


def has_to_wait(drive: Drive) -> bool:
    """Whether the next open call spawns children that can now be opened, or that have not ended."""
    tool = tool_of_next_call(drive)
    if tool is None or drive.spawn_refusal:
        return False
    call = drive.open_calls[0]
    if call.status == ToolStatus.RUNNING:
        until = _deadline(call, _request(drive, tool))
        is_over = until is not None and database_clock.now() >= until
        return not is_over and any(_is_awaited(child) for child in _children(call))
    if drive.may_be_blocked(tool) and (drive.spawn_permit is None or drive.spawn_permit[0] != call.pk):
        return False  # its hooks and rules have to permit it first
    try:
        _check(drive.run, _request(drive, tool))
    except (BadArguments, _Refused):
        return False
    return call.status == ToolStatus.PLANNED


def wait(drive: Drive) -> Progress | SpawnRefused:
    """Open the children if they are not open yet, and move the run to waiting, without a worker."""
    tool = tool_of_next_call(drive)
    assert tool is not None
    call, request = drive.open_calls[0], _request(drive, tool)
    is_new = call.status == ToolStatus.PLANNED
    until = _deadline(call, request)
    reason = WaitReason.CHILDREN
    if is_new:
        chaos.point("spawn.before")
    try:
        released = release_run(
            drive,
            RunStatus.WAITING,
            RunWaiting(reason=reason, until=until),
            reason=reason,
            ref_id=call.pk,
            unless=STOP_OR_PAUSE,
            also=partial(_spawn, drive, tool, request) if is_new else partial(_await_again, call),
            not_before=until,
        )
    except _Refused as error:
        return SpawnRefused(str(error))
    if is_new:
        chaos.point("spawn.committed")
    return released


def result(drive: Drive, call: AgentRunToolCall, tool: Tool) -> CallResult:
    """Return the result of a call that was refused, or whose children have ended, paused or timed out.

    Stops children that timed out. Raises `DecideAgain` if the call is no longer refused.
    """
    if call.status != ToolStatus.RUNNING:
        return CallResult(ToolStatus.ERROR, f"Nothing was started. {_refusal(drive, tool)}")
    children = _children(call)
    for child in children:
        if _is_awaited(child):
            _stop(drive.run, child)
    outcomes = [_outcome(child) for child in children]
    is_failed = all("error" in outcome for outcome in outcomes)
    output = str(outcomes[0].get("error") or outcomes[0]["result"]) if tool.ends else canonical(outcomes)
    status = ToolStatus.ERROR if is_failed else ToolStatus.COMPLETED
    now = database_clock.now()
    events = [
        _outcome_event(call, child, index, outcome)
        for index, (child, outcome) in enumerate(zip(children, outcomes, strict=True))
    ]
    return CallResult(status, output, 1, database_clock.milliseconds_between(call.started_at or now, now), events)


def _refusal(drive: Drive, tool: Tool) -> str:
    """Return why the next call is refused. Raises `DecideAgain` if the reason no longer holds."""
    if drive.spawn_refusal:
        return drive.spawn_refusal
    try:
        _check(drive.run, _request(drive, tool))
    except (BadArguments, _Refused) as error:
        return str(error)
    raise DecideAgain


def _request(drive: Drive, tool: Tool) -> SpawnRequest:
    call = drive.open_calls[0]
    return request_of(tool, open_call.context(drive, call, attempt=0), open_call.arguments_of(drive, call))


def _deadline(call: AgentRunToolCall, request: SpawnRequest) -> datetime | None:
    """Return when children that have not ended are stopped; None for no limit."""
    if request.timeout_s is None:
        return None
    return (call.started_at or database_clock.now()) + timedelta(seconds=request.timeout_s)


# --- Before the first write ---


def _check(run: AgentRun, request: SpawnRequest) -> list[tuple[AgentTask, Agent | None]]:
    """Return each task with its agent, or with None if it resumes a run. Raises `_Refused` if one cannot start."""
    names = {task.agent for task in request.tasks if task.agent is not None}
    agents = {agent.slug: agent for agent in Agent.objects.filter(project=run.project_id, slug__in=names)}
    for name in sorted(names):
        if name not in agents:
            raise _Refused(f"The project has no agent named {name!r}.")
    _check_nesting(run, names, new_count=sum(task.agent is not None for task in request.tasks))
    for task in request.tasks:
        if task.resume_run_id is not None:
            _check_resumable(run, task.resume_run_id)
    try:
        for agent in agents.values():
            creation.check_agent(agent)
    except Refusal as error:
        raise _Refused(f"The agent cannot start: {error}") from error
    return [(task, agents[task.agent] if task.agent is not None else None) for task in request.tasks]


def _check_nesting(run: AgentRun, names: set[str], *, new_count: int) -> None:
    """Raise `_Refused` if new children of these agents would repeat an ancestor's agent or exceed a limit."""
    if not new_count:
        return
    above = [run, *creation.ancestors_of(run)]
    for ancestor in above:
        if (own := str(ancestor.agent_config.get("agent_id"))) in names:
            raise _Refused(f"{own!r} is this agent, or one for which it works: it cannot be started from here.")
    depth = creation.exceeded_depth(above)
    if depth is not None:
        raise _Refused(f"Runs can be nested at most {depth} levels deep: do this yourself.")
    existing, limit = creation.count_children(run), creation.limits_of(run).children
    if existing + new_count > limit:
        raise _Refused(f"A run can have at most {limit} children; this one has {existing}.")


def _check_resumable(run: AgentRun, run_id: str) -> None:
    """Raise `_Refused` unless the run is a paused child of this run."""
    if not re.fullmatch(UUID_PATTERN, run_id):
        raise _Refused(f"{run_id[:64]!r} is not a valid run ID.")
    # Children of the runs that this one continues count too.
    child = AgentRun.objects.filter(pk=UUID(run_id), parent_run__root_run=run.root_run_id).first()
    if child is None:
        raise _Refused(f"Run {run_id} is not a child of this run.")
    if child.state is not RunStatus.PAUSED:
        raise _Refused(f"Only paused runs can be resumed; run {run_id} is {child.status}.")


# --- Opening children ---


def _spawn(drive: Drive, tool: Tool, request: SpawnRequest) -> None:
    """Open the children and mark the call running, in the transaction of the move to waiting. Raises `_Refused`."""
    run, call = drive.run, drive.open_calls[0]
    _leave_earlier_children(run)
    on_pause = request.on_child_pause or creation.limits_of(run).on_pause
    try:
        children = [_open(run, task, agent, on_pause) for task, agent in _check(run, request)]
    except Refusal as error:
        raise _Refused(f"A child cannot start: {error}.") from error
    # A copy, because this transaction may be rolled back and retried.
    started = tool_starts.start_call(call := copy(call), attempt=0)
    only_child = children[0].pk if len(children) == 1 else None
    AgentRunToolCall.objects.filter(pk=call.pk).update(
        status=call.status,
        starts=call.starts,
        started_at=call.started_at,
        child_run=only_child,
        changed_arguments=call.changed_arguments,
    )
    permitted = drive.spawn_permit[1] if drive.spawn_permit is not None else ()
    entries = [*permitted, started, *(_started_event(call, child, index) for index, child in enumerate(children))]
    if tool.ends:
        to_agent = str(children[0].agent_config.get("agent_id"))
        handoff = Handoff(from_agent=drive.node, to_agent=to_agent, run_id=str(children[0].pk), call_id=call.call_id)
        entries.append(Entry(handoff, step=call.step_number, ref_id=children[0].pk))
    log.append(run.pk, entries, source=Source.WORKER, epoch=drive.epoch)
    chaos.point("spawn.in_transaction")


def _leave_earlier_children(run: AgentRun) -> None:
    """Clear `on_pause` of the children of earlier calls, so that the run does not wait for them.

    A person may resume a paused child of an earlier call while the run waits for other children.
    """
    earlier = AgentRun.objects.filter(parent_run=run).exclude(on_pause="")
    # Wait for resumes in progress: the run that a resume opens inherits the value, and the UPDATE must see this run.
    list(earlier.select_for_update(no_key=True, of=("self",)).order_by("pk").values_list("pk", flat=True))
    earlier.update(on_pause="")


def _await_again(call: AgentRunToolCall) -> None:
    """Set `on_pause` of the call's children that have none, because an earlier version of agentops opened them."""
    ids = [child.pk for child in _children(call)]
    AgentRun.objects.filter(pk__in=ids, on_pause="").update(on_pause=OnChildPause.WAIT)


def _open(run: AgentRun, task: AgentTask, agent: Agent | None, on_pause: OnChildPause) -> AgentRun:
    """Open the child run of a task, or resume the paused child that the task names. Raises `Refusal`."""
    by = f"run:{run.pk}"
    if agent is not None:
        opening = Opening(config=agent.frozen(), turns=[task.prompt], by=by)
        return creation.open_run(run.project, agent, opening, Origin(parent_run=run, on_pause=on_pause))
    resumed = resuming.resume(UUID(task.resume_run_id), by=by, message=task.prompt, source=Source.WORKER).run
    # The resumed run may be the child of a run that this one continues.
    AgentRun.objects.filter(pk=resumed.pk).update(parent_run=run, on_pause=on_pause)
    return resumed


def _started_event(call: AgentRunToolCall, child: AgentRun, index: int) -> Entry:
    payload = ChildRunStarted(
        run_id=str(child.pk), agent=str(child.agent_config.get("agent_id")), call_id=call.call_id, index=index
    )
    return Entry(payload, step=call.step_number, ref_id=child.pk)


# --- Results ---


def _children(call: AgentRunToolCall) -> list[AgentRun]:
    """Return the children of a call in the order of its tasks, each as the newest run that continues it."""
    started = Event.objects.filter(log=call.run_id, type=EventType.CHILD_RUN_STARTED, step=call.step_number)
    ids = {
        payload["index"]: ref_id
        for payload, ref_id in started.order_by("seq").values_list("payload", "ref_id")
        if payload.get("call_id") == call.call_id
    }
    return [child_runs.newest(AgentRun.objects.get(pk=ids[index])) for index in sorted(ids)]


def _is_awaited(child: AgentRun) -> bool:
    """Whether the call has to wait for this child."""
    is_returned = child.on_pause == OnChildPause.RETURN and child.state is RunStatus.PAUSED
    return not child.state.terminal and not is_returned


def _outcome(child: AgentRun) -> dict[str, JsonValue]:
    """Return the outcome of a child, for the model."""
    agent, run_id = str(child.agent_config.get("agent_id")), str(child.pk)
    if child.state is RunStatus.COMPLETED:
        return {"agent": agent, "run_id": run_id, "status": child.status, "result": child.result}
    if _is_awaited(child):
        return {"agent": agent, "run_id": run_id, "status": TIMED_OUT, "error": "not done in time, and stopped"}
    if not child.state.terminal:
        return _paused(child, agent)
    error = child.error_message or child.status_reason or child.status
    return {"agent": agent, "run_id": run_id, "status": child.status, "error": error}


def _paused(child: AgentRun, agent: str) -> dict[str, JsonValue]:
    """Return the outcome of a paused child, for the model."""
    detail: dict[str, JsonValue] = {"detail": child.error_message} if child.error_message else {}
    how = f'It can go on: call spawn_agents with a task {{"resume_run_id": "{child.pk}", "prompt": …}}.'
    reason = {"reason": child.status_reason}
    return {"agent": agent, "run_id": str(child.pk), "status": child.status, **reason, **detail, "to_continue": how}


def _outcome_event(call: AgentRunToolCall, child: AgentRun, index: int, outcome: Mapping[str, JsonValue]) -> Entry:
    """Return the event of a child's outcome: it is paused, or its work for the call is completed."""
    if not child.state.terminal and not _is_awaited(child):
        paused = ChildRunPhase(
            run_id=str(child.pk),
            agent=str(outcome["agent"]),
            call_id=call.call_id,
            index=index,
            phase=child.status,
            reason=child.status_reason or None,
        )
        return Entry(paused, step=call.step_number, ref_id=child.pk)
    times = times_of(child, database_clock.now())
    payload = ChildRunCompleted(
        run_id=str(child.pk),
        agent=str(outcome["agent"]),
        call_id=call.call_id,
        index=index,
        status=str(outcome["status"]),
        summary=child.summary or None,
        error=preview(str(outcome["error"]), 500)[0] if "error" in outcome else None,
        steps=child.step_count,
        cost_usd=None if child.cost_usd is None else str(child.cost_usd),
        duration_ms=None if times is None else round(times.worked_s * 1000),
    )
    return Entry(payload, step=call.step_number, ref_id=child.pk)


def _stop(parent: AgentRun, child: AgentRun) -> None:
    """Stop a child that timed out. If a worker holds it, it stops at the next check."""
    try:
        inbox.stop(child.pk, by=f"run:{parent.pk}")
    except Refusal:
        return  # it has ended in the meantime
