"""Applies messages and model calls to the rows of an external run."""

from __future__ import annotations

from typing import Any, cast

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    UserPromptPart,
)

from agentops.base import database_clock
from runs.conversation.message_text import text_of
from runs.conversation.tool_results import CallResult
from runs.conversation.writes import TOKENS
from runs.external import contents, tool_events
from runs.external.copied_events import as_note
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.projection import Projection
from runs.external.reported_usage import read_cost, read_usage
from runs.models import AgentRunMessage
from runs.providers.messages import request
from runs.providers.price_tiers import details_of
from runs.statuses import ToolStatus
from timeline.events import Payload
from timeline.events.llm import LlmTurnAbandoned, LlmTurnEnd, LlmTurnStart
from timeline.events.message import MessageAdded

Role = AgentRunMessage.Role
_NOT_COUNTED = (*TOKENS, "cost_usd", "cost_source")


def message(projection: Projection, event: IncomingEvent, payload: MessageAdded) -> int:
    if payload.role == "tool_result":
        return _tool_result(projection, event, payload)
    content = payload.preview if payload.content is None else payload.content
    if payload.role == "assistant" and payload.content is None and (parts := projection.take_parts(event.ts)):
        # Copied from a log: it names the answer of the preceding texts.
        return projection.add_answer_without_turn(_response(event, parts, projection.model), at=event.ts, event=event)
    projection.close_answer(event.ts)
    if payload.role == "assistant":
        response = _response(event, contents.response_parts(content), projection.model)
        return projection.add_answer_without_turn(response, at=event.ts, event=event)
    return add_request(projection, payload.role, content, event, is_own=True)


def add_prompt(projection: Projection, prompt: str | list[Any], event: IncomingEvent) -> None:
    """Add the initial messages of a run: a user text, or messages with `role` and `content`."""
    for message in [prompt] if isinstance(prompt, str) else prompt:
        fields = message if isinstance(message, dict) else {"content": message}
        content = fields.get("content", message)
        match fields.get("role"):
            case "assistant":
                response = _response(event, contents.response_parts(content), projection.model)
                projection.add_answer_without_turn(response, at=event.ts)
            case "system" | "developer":
                add_request(projection, Role.SYSTEM, content, event)
            case _:
                add_request(projection, Role.USER, content, event)


def add_request(
    projection: Projection, role: str, content: object, event: IncomingEvent, *, is_own: bool = False
) -> int:
    """Add a system or user message. `is_own`: `event` is its `message.added`; otherwise, one is derived."""
    at = event.ts or database_clock.now()
    message = event.message
    if message is not None:
        pass
    elif role == Role.SYSTEM:
        message = request(SystemPromptPart(contents.text_content(content), timestamp=at))
    else:
        message = request(UserPromptPart(contents.user_content(content), timestamp=at))
    row = projection.add_message(role, message, step=projection.next_step, at=event.ts)
    is_prompt = role == Role.USER and not event.is_copied and projection.run.prompt is None
    if is_prompt and not contents.is_of_program(text_of(row.content)):
        projection.set_run(**asked_by(row, title=projection.run.title))
    return projection.append_message_event(row, event if is_own else None)


def asked_by(row: AgentRunMessage, *, title: str) -> dict[str, Any]:
    """Return the columns of a run for its first user message. Its first line is the title of a run without one."""
    lines = text_of(row.content).strip().splitlines()
    return {"prompt": row.content["parts"][0]["content"], "title": title or (lines[0][:200] if lines else "")}


def _tool_result(projection: Projection, event: IncomingEvent, payload: MessageAdded) -> int:
    call = projection.find_call(contents.call_id_of(payload.content))
    if call is None and payload.content is not None:
        text = "a tool result must name a call in its content, as call_id; or send tool.end"
        raise RejectedEvent("unknown_call", text, "/payload/content")
    if call is None or tool_events.is_closed(call):
        # Copied from a log, where it follows the end of its call; or reported again.
        return projection.append(projection.entry_of(as_note(event)))
    output = contents.user_content(payload.content)
    return tool_events.close_call(
        projection, call, CallResult(ToolStatus.COMPLETED, cast("Any", output)), event, own="message"
    )


def turn_start(projection: Projection, event: IncomingEvent, payload: LlmTurnStart) -> int:
    projection.close_answer(event.ts)
    projection.begin_answer()
    return projection.append(projection.entry_of(event, step=projection.next_step))


def delta(projection: Projection, event: IncomingEvent, payload: Payload) -> int:
    projection.begin_answer()
    return projection.append_delta(event, step=projection.next_step)


def text(projection: Projection, event: IncomingEvent, payload: Payload) -> int:
    projection.end_texts(event.ts, [f"{event.type}.delta"])
    projection.begin_answer()
    return projection.append(projection.entry_of(event, step=projection.next_step))


def turn_end(projection: Projection, event: IncomingEvent, payload: LlmTurnEnd) -> int:
    projection.end_texts(event.ts)
    calls = payload.tool_calls if isinstance(payload.tool_calls, list) else []
    parts: list[ModelResponsePart] = [ThinkingPart(payload.thinking)] if payload.thinking else []
    parts += [TextPart(payload.text)] if payload.text else []
    parts = parts or projection.received_parts()
    parts += [contents.call_part(call.id, call.name, call.arguments) for call in _unique(calls)]
    response = _response(event, parts, payload.model or projection.model)
    if event.message is None:
        reported = {**(payload.usage or {}), **payload.model_dump(exclude_none=True)}
        if payload.tier:  # under our own name, as this site exports it
            reported["service_tier"] = payload.tier
        response.usage, response.provider_details = read_usage(reported), details_of(reported) or None
    # Without a text or a call, it ends the preceding answer, as in a copied log.
    is_added = not parts and event.message is None and projection.run.step_count and projection.follows_answer()
    step = projection.run.step_count if is_added else projection.next_step
    row_id = None if is_added else projection.add_answer(response, at=event.ts).id
    known: dict[str, Any]
    if projection.calls is not None and projection.calls.is_counted_elsewhere(event, step):
        known = {"repeated": True, "model": (response.model_name or "")[:200] or None}
    else:
        known = _used(projection, event, payload, response, step)
    known |= {**dict.fromkeys(("text", "thinking", "usage")), "tool_calls": len(response.tool_calls) or None}
    stored = payload.model_copy(update=known)
    return projection.append(projection.entry_of(event, stored, step=step, ref_id=row_id))


def _used(
    projection: Projection, event: IncomingEvent, payload: LlmTurnEnd, response: ModelResponse, step: int
) -> dict[str, Any]:
    """Count a model call, and return the usage fields of its event."""
    duration_ms = tool_events.whole(payload.duration_ms)
    used = projection.add_usage(response, step=step, cost=read_cost(payload.cost_usd), duration_ms=duration_ms)
    report = projection.calls.report_of(event) if projection.calls is not None else None
    used.call = report.call if report is not None else None
    return {
        **{name: getattr(used, name) or None for name in TOKENS},
        "model": used.model or None,
        "tier": used.tier or None,
        "cost_usd": str(used.cost_usd) if used.cost_usd is not None else None,
        "repeated": None,
    }


def turn_abandoned(projection: Projection, event: IncomingEvent, payload: LlmTurnAbandoned) -> int:
    """Keep the call's usage only in the event: no row counts a runner's calls without an answer."""
    used = {name: value for name in _NOT_COUNTED if (value := getattr(payload, name)) is not None}
    extra = {**(payload.extra or {}), **used} or None
    stored = payload.model_copy(update={**dict.fromkeys(used), "extra": extra})
    return projection.append(projection.entry_of(event, stored))


def _response(event: IncomingEvent, parts: list[ModelResponsePart], model: str) -> ModelResponse:
    """Return the answer of an event: the exact message of an import, or a message with these parts."""
    if isinstance(event.message, ModelResponse):
        return event.message
    return ModelResponse(parts=parts, model_name=model or None, timestamp=event.ts or database_clock.now())


def _unique(calls: list[Any]) -> list[Any]:
    """Return the calls of an answer without repeated IDs."""
    return list({call.id: call for call in reversed(calls)}.values())[::-1]
