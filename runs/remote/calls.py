"""Steps with a tool call: the call that people see, its start, and its result.

A step that no answer of a model requests gets a separate answer, which contains only its call. So it is stored,
shown, approved and resolved like any other call.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid5

from django.db import connection
from pydantic_ai.messages import ModelResponse, ToolCallPart

from agentops.base.database.statements import select
from runs.agents import call_rules
from runs.agents.call_rules import ApprovalRule
from runs.agents.policies import OnUnknownTool
from runs.conversation import call_ids, tool_results, tool_starts, transcript
from runs.conversation.call_ids import own_call_id
from runs.conversation.tool_results import CallResult
from runs.conversation.writes import Commit
from runs.engine import ending
from runs.engine.results import ApprovalNeeded
from runs.engine.turns import hook_events, open_call
from runs.engine.turns.open_call import Denial
from runs.hooks.base import HookContext, HookEvent, VerdictKind
from runs.hooks.deciding import ActiveHook, CallDecision
from runs.lifecycle import approval_rows
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.models import AgentRunMessage, AgentRunToolCall, Checkpoint, RemoteStep
from runs.providers.messages import canonical
from runs.remote import journal, left_steps, values
from runs.remote.bodies import FailStep, StartStep
from runs.remote.holds import RemoteHold
from runs.statuses import Effect, ToolStatus
from timeline.log import Entry

#: The prefix of the key of a step that executes a call of a model, before the call's ID.
CALL_KEY = "call:"
EFFECTS = {"read": Effect.READ, "idempotent": Effect.IDEMPOTENT, "once": Effect.AT_MOST_ONCE}
OUTCOME_UNKNOWN = "outcome_unknown"
#: Calls that have neither started nor ended, and that no step has begun. `{}` follows the column of their run.
_PLANNED = """
run_id {} AND status = 'planned' AND result_message_id IS NULL
  AND NOT EXISTS (SELECT 1 FROM agent_run_remote_steps WHERE call_id = agent_run_tool_calls.id)
ORDER BY step_number DESC, id
"""


def new_call(
    hold: RemoteHold, key: str, name: str, arguments: Any, effect: Effect, *, starts: bool
) -> AgentRunToolCall:
    """Write an answer with one call, as the next step of the run. `starts`: the call begins to run with this commit."""
    step = hold.run.step_count + 1
    part = ToolCallPart(name, values.shown_input(arguments), own_call_id(key))
    row, message = transcript.new_row(
        hold.run.pk,
        hold.next_position(),
        ModelResponse(parts=[part]),
        role=AgentRunMessage.Role.ASSISTANT,
        step=step,
        epoch=hold.epoch,
        redacts_all=True,
    )
    assert isinstance(message, ModelResponse)
    call = tool_starts.planned_call(row, message.tool_calls[0], effect=effect)
    events = [transcript.message_event(row)]
    if starts:
        events.append(tool_starts.start_call(call, attempt=0))
    hold.run.step_count = step
    commit = Commit(run_id=hold.run.pk, epoch=hold.epoch, events=events, messages=[row], calls=[call], step_count=step)
    hold.write(commit)
    hold.opens([call])
    return call


class HooksNeeded(Exception):
    """Hooks have to decide about a call, outside of the transaction. Nothing was written."""

    def __init__(self, key: str, hooks: Sequence[ActiveHook], context: HookContext) -> None:
        super().__init__(key)
        self.key, self.hooks, self.context = key, hooks, context


def start(hold: RemoteHold, op: StartStep, left: RemoteStep | None) -> dict[str, Any]:
    """Start a step of the kinds `step` and `tool` that is not in the journal of this run.

    `left`: the step as an earlier run of the lineage left it, without an outcome. Raises `HooksNeeded`.
    """
    effect = EFFECTS[op.effect]
    call = requested_call(hold, op)
    arguments = values.shown_input(op.input) if call is None else call.input
    decision = _decision(hold, op, own_call_id(op.key) if call is None else call.call_id, arguments)
    rule = call_rules.decide(hold.approval_rules, op.name, decision.arguments)
    is_unknown = left_steps.is_unknown(left)
    is_free = not decision.decisions and rule is None and not op.needs_approval
    starts = is_free or is_unknown
    if call is None:
        call = new_call(hold, op.key, op.name, op.input, effect, starts=starts)
    elif starts:
        begin(hold, call)
    step = add_step(hold, op, call)
    if is_free and not is_unknown:
        return running(step)
    hold.flush()  # what follows changes these rows
    return unknown(hold, step) if is_unknown else review(hold, op, step, left)


def add_step(hold: RemoteHold, op: StartStep, call: AgentRunToolCall | None = None) -> RemoteStep:
    """Write a new step as started, with the commit of the operation."""
    known = hold.facts()
    known.step_position += 1
    position = known.step_position
    step = journal.new(hold.run, hold.epoch, key=op.key, kind=op.kind, name=op.name, call=call, position=position)
    hold.add_step(step)
    return step


def requested_call(hold: RemoteHold, op: StartStep | FailStep) -> AgentRunToolCall | None:
    """Return the call of a model's answer that the step executes, and no step has begun; None without one.

    A model may repeat an ID: in a later answer, or in the same one, whose copies then have a suffix.
    """
    if not is_requested(op):
        return None
    call_id = op.call_id or op.key.removeprefix(CALL_KEY)
    planned = hold.known_calls if hold.known_calls is not None else planned_of([hold.run.pk]).get(hold.run.pk, ())
    requested = [call for call in planned if call_ids.is_copy(call.call_id, of=call_id)]
    if isinstance(op, StartStep):
        given = canonical(values.shown_input(op.input))
        requested.sort(key=lambda call: (call.tool_name != op.name, canonical(call.input) != given))
    return requested[0] if requested else None


def is_requested(op: StartStep | FailStep) -> bool:
    """Return whether a step executes a call that an answer of a model may have requested."""
    return op.key.startswith(CALL_KEY)


def planned_of(run_ids: Sequence[UUID]) -> dict[UUID, list[AgentRunToolCall]]:
    """Return the calls of runs that no step has begun, newest answers first."""
    # Without the ORM, which would take longer to compile the query than the database takes to execute it.
    is_postgres = connection.vendor == "postgresql"
    ids = "= ANY(%s)" if is_postgres else f"IN ({', '.join(['%s'] * len(run_ids))})"
    found: dict[UUID, list[AgentRunToolCall]] = {}
    for call in select(AgentRunToolCall, _PLANNED.format(ids), [list(run_ids)] if is_postgres else run_ids):
        found.setdefault(call.run_id, []).append(call)
    return found


def reject(hold: RemoteHold, op: FailStep, call: AgentRunToolCall) -> dict[str, Any]:
    """Close a call that the process does not execute, for example because its arguments are wrong.

    A step with this key was not started.
    """
    step = journal.add(hold.run, hold.epoch, key=op.key, kind=RemoteStep.Kind.TOOL, name=call.tool_name, call=call)
    close(hold, call, CallResult(ToolStatus.ERROR, op.error.message))
    journal.fail(step, op.error.type, op.error.message)
    return outcome(step)


def _decision(hold: RemoteHold, op: StartStep, call_id: str, arguments: Any) -> CallDecision:
    """Return the decision of the hooks before a call. Raises `HooksNeeded` if they were not asked yet."""
    event = HookEvent.PRE_TOOL_USE
    if not any(hook.applies_to(event, op.name) for hook in hold.hooks):
        return CallDecision(VerdictKind.ALLOW, arguments or {})
    if (decision := hold.decisions.get(op.key)) is not None:
        return decision
    context = HookContext(
        event=event,
        run_id=str(hold.run.pk),
        agent_id=str(hold.config.get("agent_id")),
        step=hold.run.step_count + 1,
        cost_usd=hold.run.cost_usd or Decimal(0),
        settings=copy.deepcopy(hold.config.get("settings") or {}),
        tool_name=op.name,
        effect=EFFECTS[op.effect].value,
        call_id=call_id,
        arguments=arguments or {},
    )
    raise HooksNeeded(op.key, hold.hooks, context)


def review(hold: RemoteHold, op: StartStep, step: RemoteStep, left: RemoteStep | None = None) -> dict[str, Any]:
    """Start a planned call if hooks, rules and people allow it; deny it, or wait for a person. Raises `HooksNeeded`.

    `left`: the step as an earlier run of the lineage left it, perhaps with an approval. As for calls of our own
    workers, a denial always counts, and an approval only for the arguments that were approved.
    """
    call = step.call
    assert call is not None
    is_approved_before = left_steps.approval(hold, call, left) is not None
    given = call.input if call.changed_arguments is None else call.changed_arguments
    decision = _decision(hold, op, call.call_id, given)
    events = hook_events.verdict_entries(decision.decisions, step=call.step_number, call=call)
    rule = call_rules.decide(hold.approval_rules, call.tool_name, decision.arguments)
    if (denied := open_call.denial(decision, rule)) is not None:
        return _deny(hold, step, denied, events)
    is_changed = canonical(decision.arguments) != canonical(given or {})
    if open_call.needs_person(decision, rule, needs_approval=op.needs_approval):
        if not is_approved_before and not _is_approved(hold, call):
            request = _with_expiry(open_call.approval_request(decision, rule), op, rule)
            ending.wait_for_approval(hold, ApprovalNeeded(call, request, is_changed=is_changed, events=events))
            return {}
        if is_changed:
            denied = Denial("the approval", "a hook changed the arguments after they were approved")
            return _deny(hold, step, denied, events)
    if is_changed and isinstance(decision.arguments, Mapping):
        call.changed_arguments = dict(decision.arguments)
    journal.take(step, hold.epoch)
    begin(hold, call, events=events)
    return running(step)


def _is_approved(hold: RemoteHold, call: AgentRunToolCall) -> bool:
    approval = approval_rows.approved(call) or approval_rows.approved_for_run(hold.run, call.tool_name)
    return approval is not None


def _with_expiry(request: ApprovalRequest, op: StartStep, rule: ApprovalRule | None) -> ApprovalRequest:
    """Return the request with the expiry that the process wants, unless a rule has one."""
    is_set_by_rule = rule is not None and rule.expires_s is not None
    return request if is_set_by_rule or op.expires_s is None else replace(request, expires_s=op.expires_s)


def _deny(hold: RemoteHold, step: RemoteStep, denied: Denial, events: Sequence[Entry]) -> dict[str, Any]:
    """Close the call as denied, and store the denial as the outcome of the step."""
    call = step.call
    assert call is not None
    close(hold, call, open_call.denied_result(call, denied, events))
    journal.fail(step, "denied", denied.text)
    return outcome(step)


def begin(hold: RemoteHold, call: AgentRunToolCall, *, attempt: int = 0, events: Sequence[Entry] = ()) -> None:
    """Mark a call as running, after these events. `attempt`: how often it was started before."""
    expected_status = call.status
    entry = tool_starts.start_call(call, attempt=attempt)
    call.finished_at = None
    hold.write(tool_starts.start_of(call, [*events, entry], hold.epoch, expected_status=expected_status))


def go_on(hold: RemoteHold, op: StartStep, step: RemoteStep) -> dict[str, Any]:
    """Continue a step of this run that has no outcome: after a repeated request, a death, or a person's decision."""
    call = step.call
    assert call is not None
    match ToolStatus(call.status):
        case ToolStatus.PLANNED:
            return review(hold, op, step)
        case ToolStatus.RUNNING if step.epoch == hold.epoch:
            return running(step)  # the request is repeated, because its answer was lost
        case ToolStatus.RUNNING if call.effect == Effect.AT_MOST_ONCE:
            return unknown(hold, step)
        case ToolStatus.UNKNOWN if call.finished_at is not None:
            return unknown(hold, step)
        case ToolStatus.RUNNING | ToolStatus.UNKNOWN:
            journal.restart(step, hold.epoch)
            begin(hold, call, attempt=step.attempt)
            return running(step)
        case _:
            return settle(step)


def unknown(hold: RemoteHold, step: RemoteStep) -> dict[str, Any]:
    """Wait for a person to resolve whether a call took effect; or store an error, if the agent's policy says so."""
    call = step.call
    assert call is not None
    if hold.policies.on_unknown_tool is OnUnknownTool.TELL_MODEL and call.status == ToolStatus.RUNNING:
        result = tool_results.unknown_result(call)
        close(hold, call, result)
        journal.fail(step, OUTCOME_UNKNOWN, str(result.output))
        return outcome(step)
    ending.wait_for_outcome(hold, call)
    return {}


def settle(step: RemoteStep) -> dict[str, Any]:
    """Store the result of a call as the outcome of its step: a person's, or the failure of the last attempt."""
    call = step.call
    assert call is not None
    text = call.output if isinstance(call.output, str) else canonical(call.output)
    if call.status == ToolStatus.COMPLETED:
        journal.finish(step, values.inline(call.output, ""))
    elif step.error is not None:
        journal.fail(step, step.error["type"], step.error["message"])
    else:
        journal.fail(step, "denied" if call.status == ToolStatus.DENIED else "failed", text)
    return outcome(step)


def running(step: RemoteStep) -> dict[str, Any]:
    """Return the answer that the process has to execute the step now."""
    call = step.call
    assert call is not None
    answer: dict[str, Any] = {"state": "run", "attempt": step.attempt}
    answer["idempotency_key"] = idempotency_key(step)
    if call.changed_arguments is not None:
        answer["input"] = call.changed_arguments
    return answer


def idempotency_key(step: RemoteStep) -> str:
    """Return the idempotency key of a step: the same in all runs of a lineage. A fork has other keys."""
    return uuid5(step.run.root_run_id, step.key).hex


def outcome(step: RemoteStep) -> dict[str, Any]:
    """Return the answer with the outcome of a step."""
    facts = journal.outcome_of(step)
    is_denied = step.state == RemoteStep.State.FAILED and (step.error or {}).get("type") == "denied"
    return {"state": "denied" if is_denied else step.state, **facts}


def close(hold: RemoteHold, call: AgentRunToolCall, result: CallResult) -> None:
    """Store the result of a call, with a checkpoint if no other call of the run is open."""
    known = hold.facts(with_calls=True)
    open_calls = (known.open_calls or set()) - {call.pk}
    known.open_calls = open_calls
    position = hold.next_position()
    result = replace(result, attempts=max(result.attempts, call.starts))
    checkpoint = None if open_calls else _checkpoint(hold, position)
    closed = tool_results.close(call, result, position=position, epoch=hold.epoch, limit=None, checkpoint=checkpoint)
    hold.write(closed.commit)


def _checkpoint(hold: RemoteHold, position: int) -> Checkpoint | None:
    """Return the checkpoint of the run's last step; None if the step has one."""
    step, known = hold.run.step_count, hold.facts()
    if known.checkpoint == step:
        return None
    known.checkpoint = step
    return transcript.new_checkpoint(hold.run.pk, step, position, hold.epoch)
