"""The loop over a held run: decide on the next action, act, and apply the committed result, until the run is released.

Actions return the objects that they committed. Only this module applies them to the state in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.db import transaction
from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

from agentops.base import database_clock
from runs import chaos
from runs.conversation import transcript
from runs.engine import decisions, ending, policy_occasions, views
from runs.engine.decisions import Next
from runs.engine.drive import Drive, FailedAttempts
from runs.engine.releases import DecideAgain
from runs.engine.results import (
    ActResult,
    AnswerCommitted,
    ApprovalNeeded,
    CallClosed,
    CallUnknown,
    CheckpointSaved,
    HooksAsked,
    MessagesTaken,
    ModelFailed,
    Progress,
    ShutdownDue,
    SpawnPermitted,
    SpawnRefused,
    StopPending,
)
from runs.engine.safe_commit import append
from runs.engine.turns import hook_events, model_turn, subagents, tool_turn
from runs.hooks.base import HookEvent
from runs.lifecycle import command_outcomes, inbox
from runs.lifecycle.command_outcomes import mark_applied
from runs.models import AgentRunMessage, RunCommand
from runs.providers.messages import content_of, request
from timeline.log import hold


def run_until_released(drive: Drive) -> None:
    """Run one action after the other. After each action any worker can continue the run from the database."""
    next_action: Next | None = None
    while True:
        try:
            result = _act(drive, next_action or _decide(drive))
        except (DecideAgain, StopPending):
            result = Progress.CONTINUE  # the next decision sees the command that arrived
        except ShutdownDue:
            drive.end_program()
            result = ending.hand_back(drive, "worker_ending")
        if result is Progress.RELEASED:
            return
        next_action = _apply_result(drive, result)


def _decide(drive: Drive) -> Next:
    drive.check()
    return decisions.next_action(views.load_view(drive, command_outcomes.pending_types(drive.run.pk)))


def _act(drive: Drive, action: Next) -> ActResult:
    """Carry out an action. If the action releases the run, the program of a session is ended first."""
    match action:
        case Next.ASK_MODEL | Next.ASK_STARTED_MODEL:
            return model_turn.ask(drive, started=action is Next.ASK_STARTED_MODEL)
        case Next.RUN_CALL | Next.RUN_STARTED_CALL:
            return tool_turn.run_next(drive, started=action is Next.RUN_STARTED_CALL)
        case _:
            if action in _RELEASES:
                # The transcript of the program must be complete before another worker may hold the run.
                drive.end_program(gently=action is not Next.STOP)
            return _ACTS[action](drive)


def _apply_result(drive: Drive, result: ActResult) -> Next | None:
    """Update the state in memory. Returns the next action if the commit has already started it, else None."""
    match result:
        case AnswerCommitted():
            return _apply_answer(drive, result)
        case CallClosed():
            return _apply_call_result(drive, result)
        case CallUnknown() | ApprovalNeeded() | SpawnPermitted() | SpawnRefused():
            _keep_review(drive, result)
        case HooksAsked(event, step):
            drive.hooks_asked[event] = step
        case ModelFailed():
            drive.model_failure = result
        case MessagesTaken(messages):
            for row, message in messages:
                drive.conversation.add(row, message)
        case CheckpointSaved(saved_step):
            drive.checkpointed_step = saved_step
            chaos.point("checkpoint.committed")
        case Progress():
            pass
    return None


def _keep_review(drive: Drive, result: CallUnknown | ApprovalNeeded | SpawnPermitted | SpawnRefused) -> None:
    """Keep, for the next decision, why the next open call has to wait, or whether it may open child runs."""
    match result:
        case CallUnknown(call):
            drive.unknown_call = call
        case ApprovalNeeded():
            drive.needs_approval = result
        case SpawnPermitted(call, permit_events):
            drive.spawn_permit = call.pk, permit_events
        case SpawnRefused(reason):
            drive.spawn_refusal = reason


def _apply_answer(drive: Drive, answer: AnswerCommitted) -> Next | None:
    """Add an answer to the state. Returns RUN_STARTED_CALL if its first call is already stored as running."""
    drive.conversation.add(answer.row, answer.message)
    drive.run.step_count = answer.row.step_number
    drive.open_calls = list(answer.calls)
    drive.failed_attempts = FailedAttempts()
    chaos.point("turn.committed")
    drive.committed_steps += 1
    if drive.committed_steps == 1:
        drive.on_progress()
    return Next.RUN_STARTED_CALL if answer.is_first_started else None


def _apply_call_result(drive: Drive, closed: CallClosed) -> Next | None:
    """Add a result to the state. Returns ASK_STARTED_MODEL if the next model call is already started."""
    drive.conversation.add(closed.row, closed.message)
    drive.open_calls.pop(0)
    drive.spawn_refusal = ""
    chaos.point("result.committed")
    if not closed.is_last:
        chaos.point("tool.next")
        return None
    drive.checkpointed_step = drive.run.step_count
    return Next.ASK_STARTED_MODEL if closed.is_turn_started else None


def _save_checkpoint(drive: Drive) -> CheckpointSaved:
    """Save the checkpoint of the last step, if no result saved it: after a turn without tools, or after a crash."""
    step = drive.run.step_count
    row = transcript.new_checkpoint(drive.run.pk, step, drive.conversation.position, drive.epoch)
    chaos.point("checkpoint.before")
    transcript.add_checkpoint(row, drive.epoch)
    return CheckpointSaved(step)


def _take_messages(drive: Drive) -> MessagesTaken:
    """Move the messages of the inbox into the conversation, in one transaction."""
    run = drive.run
    commands = [c for c in inbox.pending_commands(run.pk) if c.type in (inbox.Type.SEND, inbox.Type.REPLY)]
    with transaction.atomic():
        # First, so that a worker that lost its lease gets LeaseLost instead of a conflict of positions.
        hold(run.pk, drive.epoch)
        turns, position = [_turn(command) for command in commands], drive.conversation.position
        messages = transcript.add_requests(run, turns, step=run.step_count + 1, epoch=drive.epoch, position=position)
        mark_applied(commands)
        append(drive.lease, [transcript.message_event(row) for row, _ in messages])
    return MessagesTaken(messages)


def _turn(command: RunCommand) -> tuple[str, ModelRequest]:
    """Return the role and the message of a `send` or `reply` command. Only hooks send system messages."""
    text, now = command.payload["message"], database_clock.now()
    if inbox.is_system_message(command):
        return AgentRunMessage.Role.SYSTEM, request(SystemPromptPart(text, timestamp=now))
    return AgentRunMessage.Role.USER, request(UserPromptPart(content_of(text), timestamp=now))


def _give_up(drive: Drive) -> Progress:
    assert drive.model_failure is not None
    return policy_occasions.on_error(drive, drive.model_failure.failure)


def _wait_for_approval(drive: Drive) -> Progress:
    assert drive.needs_approval is not None
    return ending.wait_for_approval(drive, drive.needs_approval)


def _wait_for_outcome(drive: Drive) -> Progress:
    assert drive.unknown_call is not None
    return ending.wait_for_outcome(drive, drive.unknown_call)


def _pause_budget(drive: Drive) -> Progress:
    return ending.pause_budget(drive, drive.spending.used_up())


def _cool_down(drive: Drive) -> Progress:
    assert drive.model_failure is not None
    assert drive.model_failure.until is not None
    return ending.cool_down(drive, drive.model_failure.until)


_ACTS: dict[Next, Callable[[Drive], ActResult]] = {
    Next.SAVE_CHECKPOINT: _save_checkpoint,
    Next.TAKE_MESSAGES: _take_messages,
    Next.GIVE_UP: _give_up,
    Next.COOL_DOWN: _cool_down,
    Next.HAND_BACK: partial(ending.hand_back, reason="slice_over"),
    Next.IDLE: policy_occasions.on_idle,
    Next.PAUSE_MAX_STEPS: policy_occasions.on_max_steps,
    Next.ANSWER_CUT: policy_occasions.on_answer_fault,
    Next.ANSWER_REFUSED: policy_occasions.on_answer_fault,
    Next.WAIT_FOR_ANSWER: policy_occasions.on_prompt,
    Next.WAIT_FOR_CHILDREN: subagents.wait,
    Next.ASK_AGENT_START: partial(hook_events.ask, event=HookEvent.AGENT_START),
    Next.ASK_TURN_START: partial(hook_events.ask, event=HookEvent.TURN_START),
    Next.ASK_TURN_END: partial(hook_events.ask, event=HookEvent.TURN_END),
    Next.ASK_AGENT_STOP: partial(hook_events.ask, event=HookEvent.AGENT_STOP),
    Next.WAIT_FOR_APPROVAL: _wait_for_approval,
    Next.WAIT_FOR_OUTCOME: _wait_for_outcome,
    Next.COMPLETE: ending.complete,
    Next.STOP: ending.stop,
    Next.STOP_REPEATED: ending.stop_repeated,
    Next.PAUSE: ending.pause,
    Next.PAUSE_BUDGET: _pause_budget,
}
_HOOKS = frozenset({Next.ASK_AGENT_START, Next.ASK_TURN_START, Next.ASK_TURN_END, Next.ASK_AGENT_STOP})
#: The actions before which the program of a session is ended, because they release the run. After IDLE, a policy may
#: let the run continue. After GIVE_UP, `Drive.close` kills the program.
_RELEASES = frozenset(_ACTS) - _HOOKS - {Next.SAVE_CHECKPOINT, Next.TAKE_MESSAGES, Next.IDLE, Next.GIVE_UP}
