"""The next open call: its arguments, and the context for its tool."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from pydantic_ai.messages import ModelResponse, ToolCallPart

from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.redaction.windows import mask
from runs.conversation import call_ids
from runs.engine.drive import Drive
from runs.engine.turns.live_output import LiveOutput
from runs.lifecycle.error_contexts import LLM_COMPLETE
from runs.models import AgentRunToolCall
from runs.tools.base import ToolContext
from runs.tools.conversation_tools import Question, question_of
from timeline.events.notice import Error
from timeline.log import Entry

#: The maximum number of calls of one answer that are run. Further calls get an error: the model is out of control.
MAX_CALLS = 64
#: The maximum number of tool names listed for a model that calls an unknown tool.
MAX_NAMES = 20


def question(drive: Drive) -> Question | None:
    """Return the question that the next open call asks a person; None for any other call."""
    if not drive.open_calls:
        return None
    call = drive.open_calls[0]
    tool = drive.toolset.get(call.tool_name)
    if tool is None or not tool.asks or is_too_many(drive, call):
        return None
    return question_of(tool, context(drive, call, attempt=0), arguments(drive, call))


def arguments(drive: Drive, call: AgentRunToolCall) -> Any:
    """Return the arguments for the tool: as changed by a hook or an approver, or else from the message.

    The message is never redacted; the row's `input` is.
    """
    if call.changed_arguments is not None:
        return call.changed_arguments
    return next(part for part in _parts(drive) if part.tool_call_id == call.call_id).args or {}


def is_too_many(drive: Drive, call: AgentRunToolCall) -> bool:
    """Whether at least `MAX_CALLS` calls of the answer come before this one."""
    return [part.tool_call_id for part in _parts(drive)].index(call.call_id) >= MAX_CALLS


def dropped_calls_event(count: int, step: int) -> list[Entry]:
    """Return the event about calls that were removed from an answer; none if there were none."""
    if not count:
        return []
    text = (
        f"The answer requested {call_ids.MAX_KEPT + count:,} tool calls. "
        f"The conversation keeps the first {call_ids.MAX_KEPT}, of which {MAX_CALLS} are run."
    )
    return [Entry(Error(error_type="too_many_calls", error=text, context=LLM_COMPLETE), step=step, clean=True)]


def unknown_tool(drive: Drive, call: AgentRunToolCall) -> str:
    """Return the answer to a call of an unknown tool. It names the most similar tool, or all tools."""
    names = [definition.name for definition in drive.toolset.definitions()]
    similar = get_close_matches(call.tool_name, names, n=1)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    if not hint and names:
        hint = f" There are: {', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''}."
    return f"There is no tool named {call.tool_name!r}.{hint}"


def context(drive: Drive, call: AgentRunToolCall, *, attempt: int, output: LiveOutput | None = None) -> ToolContext:
    """Return the context for the tool of a call. Attempts count from 0. The tool writes to `output`."""
    pk = str(call.pk)
    key = call.idempotency_key or pk
    made = _context(drive, call.call_id, pk, key, attempt=attempt, step=call.step_number)
    return made if output is None else replace(made, write=output.write)


def context_of_gate(drive: Drive, name: str) -> ToolContext:
    """Return the context for a gate. No model called it, so the context is the same for each run of the gate."""
    return _context(drive, name, name, f"{drive.run.pk}:{name}", attempt=0, step=drive.run.step_count)


def _context(drive: Drive, call_id: str, pk: str, key: str, *, attempt: int, step: int) -> ToolContext:
    return ToolContext(
        run_id=str(drive.run.pk),
        call_id=call_id,
        tool_call_pk=pk,
        idempotency_key=key,
        attempt=attempt,
        epoch=drive.epoch,
        model_call=drive.call_number(step),
        settings=drive.settings,
        cancelled=lambda: drive.lease.lost.is_set() or drive.shutdown.is_due,
        # Fixed here: a tool runs in a separate thread, which has no project in scope.
        mask=partial(mask, redactor=MODEL_INPUT.fixed()),
    )


def _parts(drive: Drive) -> list[ToolCallPart]:
    """Return the calls of the last answer, to which open calls always belong."""
    answer = next(m for m in reversed(drive.conversation.history) if isinstance(m, ModelResponse))
    return answer.tool_calls
