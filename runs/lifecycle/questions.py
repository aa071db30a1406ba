"""Questions of an agent to a person: a tool call is the question, and the next message to the run is the answer.

The run waits without a worker. The answer becomes the result of the call, so each question has exactly one answer.
Then the run returns to the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from runs.conversation import tool_results, tool_starts, transcript, writes
from runs.conversation.tool_results import CallResult
from runs.conversation.tool_starts import asking_calls
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.statuses import RunStatus, ToolStatus, WaitReason
from runs.tools import front_end_tools
from timeline.events.run import RunPhase
from timeline.models import Source

#: Status reason of a run that returns to the queue after an answer.
REASON = "answered"


@dataclass(frozen=True)
class OpenQuestion:
    """The question that a run waits for, redacted."""

    call: AgentRunToolCall
    text: str
    choices: list[str]
    #: Whether the call is one of a front-end tool, whose result is the answer.
    is_for_front_end: bool = False


def is_waiting_for_answer(run: AgentRun) -> bool:
    """Whether the next message to the run is an answer."""
    return run.state is RunStatus.WAITING and run.status_reason == WaitReason.INPUT


def open_question(run: AgentRun) -> OpenQuestion | None:
    """Return the open question of a run; None without one. One query."""
    call = asking_calls(run.pk).first() if is_waiting_for_answer(run) else None
    return None if call is None else question_in(run, call)


def question_in(run: AgentRun, call: AgentRunToolCall) -> OpenQuestion:
    """Return the question of the call that asks."""
    arguments = call.input if isinstance(call.input, dict) else {}
    if call.tool_name in front_end_tools.names_in(run.agent_config):
        return OpenQuestion(
            call, front_end_tools.front_end_question(call.tool_name, arguments), [], is_for_front_end=True
        )
    choices = arguments.get("choices")
    offered = [str(choice) for choice in choices] if isinstance(choices, list) else []
    return OpenQuestion(call, str(arguments.get("question") or ""), offered)


def answer(run: AgentRun, command: RunCommand) -> None:
    """Make a message the result of the call that asks, and queue the run, in the caller's transaction.

    The caller has locked the row of the run, and has checked that the run waits for an answer.
    """
    call = asking_calls(run.pk).first()
    if call is not None:
        _close(call, command.payload["message"])
    payload = RunPhase(status=RunStatus.QUEUED, reason=REASON)
    transitions.move(run, RunStatus.QUEUED, payload, source=Source.WEB, reason=REASON)


def _close(call: AgentRunToolCall, text: str) -> None:
    """Start the call, and close it with the text as its result, which is never cut."""
    started = tool_starts.start_call(call, attempt=0)
    call.save(update_fields=["status", "starts", "started_at"])
    result = CallResult(ToolStatus.COMPLETED, text, attempts=1)
    position = transcript.last_position(call.run_id) + 1
    closed = tool_results.close(call, result, position=position, epoch=None, source=Source.WEB, before=[started])
    writes.write(closed.commit)
