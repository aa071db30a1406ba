"""The next call of an answer: what the model asked for, and what its tool is given."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ModelResponse, ToolCallPart

from runs.engine.drive import Drive
from runs.models import AgentRunToolCall
from runs.tools.base import ToolContext
from runs.tools.speaking import Question, asked_by
from timeline.redaction.windows import mask

#: More calls than this in one answer are a runaway model: the rest is answered with an error, not run.
MAX_CALLS = 64


def question(drive: Drive) -> Question | None:
    """What the next open call asks a person; None where it is another one."""
    if not drive.open_calls:
        return None
    call = drive.open_calls[0]
    tool = drive.toolset.get(call.tool_name)
    if tool is None or not tool.asks or is_too_many(drive, call):
        return None
    return asked_by(tool, context(drive, call, attempt=0), arguments(drive, call))


def arguments(drive: Drive, call: AgentRunToolCall) -> Any:
    """From the message, which is never redacted: the row's `input` is for people."""
    return next(part for part in _parts(drive) if part.tool_call_id == call.call_id).args or {}


def is_too_many(drive: Drive, call: AgentRunToolCall) -> bool:
    """Whether at least `MAX_CALLS` calls of its answer stand before it."""
    return [part.tool_call_id for part in _parts(drive)].index(call.call_id) >= MAX_CALLS


def context(drive: Drive, call: AgentRunToolCall, *, attempt: int) -> ToolContext:
    """What the tool of a call is told beside its arguments. Attempts count from 0."""
    pk = str(call.pk)
    key = call.idempotency_key or pk
    return _context(drive, call.call_id, pk, key, attempt=attempt, step=call.step_number)


def context_of_gate(drive: Drive, name: str) -> ToolContext:
    """For a tool that no model asked for: the same each time that this gate is asked."""
    return _context(drive, name, name, f"{drive.run.pk}:{name}", attempt=0, step=drive.run.step_count)


def _context(drive: Drive, call_id: str, pk: str, key: str, *, attempt: int, step: int) -> ToolContext:
    return ToolContext(
        run_id=str(drive.run.pk),
        call_id=call_id,
        tool_call_pk=pk,
        idempotency_key=key,
        attempt=attempt,
        epoch=drive.epoch,
        model_call=step,
        settings=drive.settings,
        cancelled=lambda: drive.lease.lost.is_set() or drive.stopping.over,
        mask=mask,
    )


def _parts(drive: Drive) -> list[ToolCallPart]:
    """The calls of the model's last answer: open calls always belong to it."""
    answer = next(m for m in reversed(drive.conversation.history) if isinstance(m, ModelResponse))
    return answer.tool_calls
