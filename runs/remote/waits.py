"""Steps for which the run waits without a process: for a person, a time, a signal or a child run.

Each has a tool call, like other steps. Its first start stores the call and releases the run. When the run can go on, a
process claims it and starts the step again, which then has an outcome.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from agentops.base import database_clock
from agentops.base.refusals import Conflict, Invalid, Refusal
from runs.conversation.call_ids import own_call_id
from runs.conversation.tool_results import CallResult
from runs.engine import ending
from runs.engine.ending import STOP_OR_PAUSE
from runs.engine.releases import release_run
from runs.engine.results import ApprovalNeeded
from runs.lifecycle import children, creation, inbox
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.lifecycle.command_outcomes import mark_applied
from runs.models import Agent, AgentRun, AgentRunToolCall, Approval, RemoteStep, RunCommand
from runs.providers.messages import canonical
from runs.remote import calls, journal, left_steps, values
from runs.remote.bodies import StartStep
from runs.remote.holds import RemoteHold
from runs.statuses import Effect, OnChildPause, RunStatus, ToolStatus, WaitReason
from timeline.events.run import RunWaiting

#: Sleeps up to this many seconds keep the run: its process waits, and then finishes the step.
SHORT_SLEEP_S = 5.0
#: The output of the call of a sleep that is over.
TIME_OVER = "The time is over."
#: The error types of steps whose wait has ended without a value.
TIMED_OUT, REFUSED = "timeout", "child_refused"
#: Characters of a child run's prompt in the arguments of its call. The child gets all of it.
MAX_PROMPT = 10_000


def start(hold: RemoteHold, op: StartStep, left: RemoteStep | None) -> dict[str, Any]:
    """Store a new waiting step with its call, and release the run unless the step has its outcome at once.

    `left`: the step as an earlier run left it. A resumed run continues its wait: the deadline and the child run stay.
    """
    left = left if left is not None and left_steps.is_of_lineage(hold, left) else None
    arguments = _arguments(op) if left is None or left.call is None else _continued(op, left.call)
    if op.kind == "child" and op.key.startswith(calls.CALL_KEY):
        call = calls.requested_call(hold, op) or calls.new_call(
            hold, op.key, op.name, arguments, Effect.READ, starts=False
        )
        step = journal.add(hold.run, hold.epoch, key=op.key, kind=op.kind, name=op.name, call=call)
        return _delegate(hold, op, step, left)
    starts = op.kind not in ("approval", "question")
    call = calls.new_call(hold, op.key, op.name, arguments, Effect.READ, starts=starts)
    step = journal.add(hold.run, hold.epoch, key=op.key, kind=op.kind, name=op.name, call=call)
    if op.kind == "child":
        return _start_child(hold, op, step, left)
    if left is not None and (approval := left_steps.approval(hold, call, left)) is not None:
        return _approved(hold, step, call, approval)
    return go_on(hold, op, step)


def _delegate(hold: RemoteHold, op: StartStep, step: RemoteStep, left: RemoteStep | None) -> dict[str, Any]:
    """Execute a call of a model by a child run, if hooks, rules and people allow the call. They decide once."""
    assert step.call is not None
    if left_steps.has_child(left):
        calls.begin(hold, step.call)
        return _start_child(hold, op, step, left)
    answer = calls.review(hold, op, step, left)
    return _start_child(hold, op, step, left) if answer.get("state") == "run" else answer


def _start_child(hold: RemoteHold, op: StartStep, step: RemoteStep, left: RemoteStep | None) -> dict[str, Any]:
    """Open the child run of a step whose call runs, or continue the one of an earlier run, and wait for it."""
    call = step.call
    assert call is not None
    try:
        child = left_steps.child(hold, left) or _open_child(hold, op)
    except Refusal as refusal:
        return _fail(hold, step, REFUSED, str(refusal))
    call.child_run = child
    AgentRunToolCall.objects.filter(pk=call.pk).update(child_run=child)
    return go_on(hold, op, step)


def go_on(hold: RemoteHold, op: StartStep, step: RemoteStep) -> dict[str, Any]:
    """Return the outcome of a waiting step, or release the run until it has one."""
    call = step.call
    assert call is not None
    if call.result_message_id is not None:
        return settle(step)
    if op.kind == "child" and call.status == ToolStatus.PLANNED:
        return _delegate(hold, op, step, left=None)
    match step.kind:
        case "approval":
            return _ask_for_approval(hold, op, step, call)
        case "question":
            return _release(hold, op, WaitReason.INPUT, step, question=op.question, choices=op.choices or None)
        case "sleep":
            return _sleep(hold, op, step, call)
        case "signal":
            return _receive_signal(hold, op, step, call)
    return _await_child(hold, op, step, call)


def _arguments(op: StartStep) -> dict[str, Any]:
    """Return the arguments of the call of a waiting step, which pages show."""
    required = {"sleep": op.seconds, "signal": op.signal, "child": op.agent, "question": op.question}.get(op.kind, True)
    if not required:
        member = {"sleep": "seconds"}.get(op.kind, "agent" if op.kind == "child" else op.kind)
        raise Invalid(f"a step of the kind {op.kind} needs {member}", code="invalid_body", pointer=f"/{member}")
    match op.kind:
        case "question":
            return {"question": op.question, **({"choices": op.choices} if op.choices else {})}
        case "sleep":
            until = database_clock.now() + timedelta(seconds=op.seconds or 0)
            return {"seconds": op.seconds, "until": until.isoformat()}
        case "signal":
            return {"signal": op.signal, **_until(op.timeout_s)}
        case "child":
            # Cut, because the whole object must not be too large for pages: it has the deadline.
            return {"agent": op.agent, "prompt": op.prompt[:MAX_PROMPT], **_until(op.timeout_s)}
    return values.shown_input(op.input)


def _continued(op: StartStep, left: AgentRunToolCall) -> dict[str, Any]:
    """Return the arguments of a wait that an earlier run has begun: its deadline stays."""
    arguments = _arguments(op)
    until = left.input.get("until") if isinstance(left.input, dict) else None
    return arguments | {"until": until} if until and "until" in arguments else arguments


def _until(timeout_s: float | None) -> dict[str, str]:
    if timeout_s is None:
        return {}
    return {"until": (database_clock.now() + timedelta(seconds=timeout_s)).isoformat()}


def _deadline(op: StartStep, step: RemoteStep) -> datetime | None:
    """Return the time at which the wait of a step ends; None for no limit."""
    call = step.call
    assert call is not None
    if call.call_id != own_call_id(step.key):
        # These are the arguments of a model's call, which a child run executes.
        return step.created_at + timedelta(seconds=op.timeout_s) if op.timeout_s else None
    until = call.input.get("until") if isinstance(call.input, dict) else None
    return datetime.fromisoformat(until) if until else None


def _is_over(op: StartStep, step: RemoteStep) -> bool:
    deadline = _deadline(op, step)
    return deadline is not None and database_clock.now() >= deadline


def _wait(hold: RemoteHold, op: StartStep, reason: WaitReason, step: RemoteStep) -> dict[str, Any]:
    """Release the run to wait for a step. A process that works on other steps keeps it, and starts this one again."""
    return _release(hold, op, reason, step) if op.may_release else {"state": "waiting"}


def _release(hold: RemoteHold, op: StartStep, reason: WaitReason, step: RemoteStep, **facts: Any) -> dict[str, Any]:
    """Release the run to wait for a step. A reply in the inbox is the answer to a question."""
    until = _deadline(op, step)
    payload = RunWaiting(reason=reason, until=until, **facts)
    then = (lambda: inbox.answer_early(hold.run)) if reason is WaitReason.INPUT else None
    options: dict[str, Any] = {"reason": reason, "ref_id": step.call_id, "not_before": until, "unless": STOP_OR_PAUSE}
    release_run(hold, RunStatus.WAITING, payload, then=then, **options)
    return {}


def _ask_for_approval(hold: RemoteHold, op: StartStep, step: RemoteStep, call: AgentRunToolCall) -> dict[str, Any]:
    approval = Approval.objects.filter(call=call).first()
    if approval is not None and approval.state == Approval.State.APPROVED:
        return _approved(hold, step, call, approval)
    request = ApprovalRequest(
        arguments=call.input or {},
        reason="",
        requested_by="tool",
        expires_s=op.expires_s or settings.AGENTOPS_APPROVAL_EXPIRES_S,
    )
    ending.wait_for_approval(hold, ApprovalNeeded(call, request, is_changed=False, events=()))
    return {}


def _approved(hold: RemoteHold, step: RemoteStep, call: AgentRunToolCall, approval: Approval) -> dict[str, Any]:
    calls.begin(hold, call)
    verdict: dict[str, Any] = {"approved": True, "by": approval.decided_by, "message": approval.message}
    if call.changed_arguments is not None:
        verdict["payload"] = call.changed_arguments
    calls.close(hold, call, CallResult(ToolStatus.COMPLETED, canonical(verdict)))
    return _done(step, verdict)


def settle(step: RemoteStep) -> dict[str, Any]:
    """Store the outcome of a step whose call a person has closed: an answer, or a denial."""
    if step.kind == RemoteStep.Kind.APPROVAL:
        approval = Approval.objects.filter(call=step.call).first()
        by, message = (approval.decided_by, approval.message) if approval is not None else ("", "")
        return _done(step, {"approved": False, "by": by, "message": message})
    return calls.settle(step)


def _sleep(hold: RemoteHold, op: StartStep, step: RemoteStep, call: AgentRunToolCall) -> dict[str, Any]:
    if not _is_over(op, step):
        if (op.seconds or 0) > SHORT_SLEEP_S:
            return _wait(hold, op, WaitReason.TIMER, step)
        journal.take(step, hold.epoch)
        return {"state": "run", "attempt": step.attempt}
    calls.close(hold, call, CallResult(ToolStatus.COMPLETED, TIME_OVER))
    return _done(step, None)


def _receive_signal(hold: RemoteHold, op: StartStep, step: RemoteStep, call: AgentRunToolCall) -> dict[str, Any]:
    pending = RunCommand.objects.filter(run=hold.run, type=RunCommand.Type.SIGNAL, applied_at=None)
    signal = pending.filter(payload__name=op.signal).order_by("received_at", "id").first()
    if signal is not None:
        mark_applied([signal])
        payload = signal.payload.get("payload")
        calls.close(hold, call, CallResult(ToolStatus.COMPLETED, canonical(payload)))
        return _done(step, payload)
    if _is_over(op, step):
        return _fail(hold, step, TIMED_OUT, f"no signal {op.signal!r} arrived in time")
    return _wait(hold, op, WaitReason.SIGNAL, step)


def _open_child(hold: RemoteHold, op: StartStep) -> AgentRun:
    """Open the child run of a step. Raises `Refusal` if it cannot start."""
    agent = Agent.objects.filter(project=hold.run.project_id, slug=op.agent).first()
    if agent is None:
        raise Invalid(f"the project has no agent named {op.agent!r}", code="agent_not_found", pointer="/agent")
    return creation.create(
        hold.run.project,
        agent,
        op.prompt,
        by=f"run:{hold.run.pk}",
        parent_id=hold.run.pk,
        on_pause=OnChildPause.WAIT,
    )


def _await_child(hold: RemoteHold, op: StartStep, step: RemoteStep, call: AgentRunToolCall) -> dict[str, Any]:
    assert call.child_run is not None
    child = children.newest(call.child_run)
    if not child.state.terminal:
        if not _is_over(op, step):
            return _wait(hold, op, WaitReason.CHILDREN, step)
        try:
            inbox.stop(child.pk, by=f"run:{hold.run.pk}", key=f"timed_out:{child.pk}")
        except Conflict:  # it has ended since it was read
            return _await_child(hold, op, step, call)
        return _fail(hold, step, TIMED_OUT, f"the child run {child.pk} had not ended in time and was stopped")
    value = _child_outcome(child)
    status = ToolStatus.COMPLETED if child.state is RunStatus.COMPLETED else ToolStatus.ERROR
    calls.close(hold, call, CallResult(status, canonical(value)))
    return _done(step, value)


def _child_outcome(child: AgentRun) -> dict[str, Any]:
    """Return the outcome of an ended child run as the value of its step."""
    result = child.result if child.structured_output is None else child.structured_output
    value: dict[str, Any] = {"run_id": str(child.pk), "status": child.status, "result": result}
    if child.state is not RunStatus.COMPLETED:
        value["error"] = child.error_message or child.status_reason or child.status
    return value


def _done(step: RemoteStep, value: Any) -> dict[str, Any]:
    journal.finish(step, values.inline(value, ""))
    return calls.outcome(step)


def _fail(hold: RemoteHold, step: RemoteStep, error_type: str, message: str) -> dict[str, Any]:
    """Close the call as failed, and store the error as the outcome of the step."""
    call = step.call
    assert call is not None
    calls.close(hold, call, CallResult(ToolStatus.ERROR, message))
    journal.fail(step, error_type, message)
    return calls.outcome(step)
