"""What an agent asks a person: the call is the question, and the next message is its result.

The run waits without a worker; whoever answers
writes the call's result, so that each question has exactly one, and puts the run back into the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from runs.conversation import tool_results, tool_starts, transcript, writes
from runs.conversation.tool_results import CallResult
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.statuses import RunStatus, ToolStatus, WaitReason
from timeline.events.run import RunPhase
from timeline.models import Source

#: Why such a run stands in the queue again.
REASON = "answered"


@dataclass(frozen=True)
class OpenQuestion:
    """What a run waits for, as people may read it: secrets are redacted."""

    call: AgentRunToolCall
    text: str
    choices: list[str]


def waits(run: AgentRun) -> bool:
    """Whether the next message to it is an answer."""
    return run.state is RunStatus.WAITING and run.status_reason == WaitReason.INPUT


def open_question(run: AgentRun) -> OpenQuestion | None:
    """What the run asks now; one query."""
    call = _asking(run) if waits(run) else None
    if call is None:
        return None
    arguments = call.input if isinstance(call.input, dict) else {}
    choices = arguments.get("choices")
    offered = [str(choice) for choice in choices] if isinstance(choices, list) else []
    return OpenQuestion(call, str(arguments.get("question") or ""), offered)


def answer(run: AgentRun, command: RunCommand) -> None:
    """Make what somebody said the result of the call that asks, and queue the run, in the caller's transaction.

    The caller has locked the run's row, and knows that it waits.
    """
    call = _asking(run)
    if call is not None:
        _close(call, command.payload["message"])
    over = RunPhase(status=RunStatus.QUEUED, reason=REASON)
    transitions.move(run, RunStatus.QUEUED, over, source=Source.WEB, reason=REASON)


def _asking(run: AgentRun) -> AgentRunToolCall | None:
    """Calls are made one after the other: it is the first that has not been started."""
    planned = AgentRunToolCall.objects.filter(run=run, status=ToolStatus.PLANNED, result_message=None)
    return planned.order_by("step_number", "id").first()


def _close(call: AgentRunToolCall, text: str) -> None:
    """Start and end it at once: between the two lies nothing but the person who answers. An answer is never cut."""
    started = tool_starts.start_call(call, attempt=0)
    call.save(update_fields=["status", "starts", "started_at"])
    result = CallResult(ToolStatus.COMPLETED, text, attempts=1)
    position = transcript.last_position(call.run_id) + 1
    closed = tool_results.close(call, result, position=position, epoch=None, source=Source.WEB, before=[started])
    writes.write(closed.commit)
