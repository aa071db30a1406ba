"""Applies messages and model calls to the rows of an external run."""

from __future__ import annotations

from dataclasses import replace
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
from runs.conversation.tool_results import CallResult
from runs.conversation.transcript import text_of
from runs.conversation.writes import TOKENS
from runs.external import contents, tool_events
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.foreign_payloads import read_cost, read_usage, tokens_of
from runs.external.importers.block_dialects import plain_content
from runs.external.projection import Projection
from runs.models import AgentRunMessage
from runs.providers.finish_reasons import named
from runs.providers.messages import request
from runs.providers.price_tiers import details_of
from runs.statuses import ToolStatus
from timeline import events
from timeline.events import Payload
from timeline.events.llm import LlmTurnAbandoned, LlmTurnEnd, LlmTurnStart, MessageAdded


def as_note(event: IncomingEvent) -> IncomingEvent:
    """Return the event as a custom event, whose type has the prefix `x.`, so that it changes no row."""
    assert isinstance(event.payload, events.Payload)
    type_ = f"x.{event.type}"
    return replace(event, type=type_, payload=events.parse(type_, events.dump(event.payload)[1]))


Role = AgentRunMessage.Role
#: The fields of an abandoned call's usage.
_NOT_COUNTED = (*TOKENS, "cost_usd", "cost_source")


def apply_message(projection: Projection, event: IncomingEvent, payload: MessageAdded) -> int:
    """Add a message to the conversation: a request, an answer or a tool result."""
    if payload.role == "tool_result":
        return _tool_result(projection, event, payload)
    content = payload.preview if payload.content is None else payload.content
    if payload.role == "assistant" and payload.content is None and (parts := projection.take_parts(event.ts)):
        # The event was copied from a log, where it follows the texts of its answer.
        return projection.add_answer_without_turn(_response(event, parts, projection.model), at=event.ts, event=event)
    projection.close_answer(event.ts)
    if payload.role == "assistant":
        response = _response(event, contents.response_parts(plain_content(content)), projection.model)
        return projection.add_answer_without_turn(response, at=event.ts, event=event)
    return add_request(projection, payload.role, content, event, is_own=True)


def add_prompt(projection: Projection, prompt: str | list[Any], event: IncomingEvent) -> None:
    """Add the initial messages of a run: a user text, or messages with `role` and `content`."""
    for message in [prompt] if isinstance(prompt, str) else prompt:
        fields = message if isinstance(message, dict) else {"content": message}
        content = fields.get("content", message)
        match fields.get("role"):
            case "assistant":
                response = _response(event, contents.response_parts(plain_content(content)), projection.model)
                projection.add_answer_without_turn(response, at=event.ts)
            case "system" | "developer":
                add_request(projection, Role.SYSTEM, content, event)
            case _:
                add_request(projection, Role.USER, content, event)


def add_request(
    projection: Projection, role: str, content: object, event: IncomingEvent, *, is_own: bool = False
) -> int:
    """Add a system or user message. The first message that a person wrote becomes the prompt of the run.

    `is_own`: `event` is the `message.added` of this message; otherwise, such an event is derived. Returns the sequence
    number of that event.
    """
    at = event.ts or database_clock.now()
    if event.message is not None:
        message = event.message
    elif role == Role.SYSTEM:
        message = request(SystemPromptPart(contents.text_content(content), timestamp=at))
    else:
        message = request(UserPromptPart(contents.user_content(plain_content(content)), timestamp=at))
    row = projection.add_message(role, message, step=projection.next_step, at=event.ts)
    is_prompt = role == Role.USER and not event.is_copied and projection.run.prompt is None
    if is_prompt and not contents.is_of_program(text_of(row.content)):
        projection.change_run(**prompt_columns(row, title=projection.run.title))
    return projection.append_message_event(row, event if is_own else None)


def prompt_columns(row: AgentRunMessage, *, title: str) -> dict[str, Any]:
    """Return the columns of a run whose prompt is the message `row`: its prompt, and its title.

    `title`: the current title. A run without one gets the first line of the prompt.
    """
    lines = text_of(row.content).strip().splitlines()
    return {"prompt": row.content["parts"][0]["content"], "title": title or (lines[0][:200] if lines else "")}


def _tool_result(projection: Projection, event: IncomingEvent, payload: MessageAdded) -> int:
    """Close the call of a result, unless it has one. Raises `RejectedEvent` if the result names no known call."""
    call = projection.find_call(contents.call_id_of(payload.content))
    if call is None and payload.content is not None:
        text = "a tool result must name a call in its content, as call_id; or send tool.end"
        raise RejectedEvent("unknown_call", text, "/payload/content")
    if call is None or tool_events.is_closed(call):
        # The event was copied from a log, where it follows the end of its call; or it is a repeat.
        return projection.append(projection.entry_of(as_note(event)))
    output = contents.user_content(payload.content)
    return tool_events.close_call(
        projection, call, CallResult(ToolStatus.COMPLETED, cast("Any", output)), event, own="message"
    )


def apply_turn_start(projection: Projection, event: IncomingEvent, payload: LlmTurnStart) -> int:
    projection.close_answer(event.ts)
    projection.begin_answer()
    return projection.append(projection.entry_of(event, step=projection.next_step))


def apply_delta(projection: Projection, event: IncomingEvent, payload: Payload) -> int:
    projection.begin_answer()
    return projection.append_delta(event, step=projection.next_step)


def apply_text(projection: Projection, event: IncomingEvent, payload: Payload) -> int:
    """Append a whole text or thinking of an answer, after the deltas of the same kind."""
    projection.end_texts(event.ts, [f"{event.type}.delta"])
    projection.begin_answer()
    return projection.append(projection.entry_of(event, step=projection.next_step))


def apply_turn_end(projection: Projection, event: IncomingEvent, payload: LlmTurnEnd) -> int:
    """Add the answer of a turn, made from the event or else from the texts before it, and count its usage."""
    projection.end_texts(event.ts)
    calls = payload.tool_calls if isinstance(payload.tool_calls, list) else []
    parts: list[ModelResponsePart] = [ThinkingPart(payload.thinking)] if payload.thinking else []
    parts += [TextPart(payload.text)] if payload.text else []
    parts = parts or projection.received_parts()
    parts += [contents.call_part(call.id, call.name, call.arguments) for call in _unique(calls)]
    response = _response(event, parts, payload.model or projection.model)
    if event.message is None:
        reported = {**(payload.usage or {}), **payload.model_dump(exclude_none=True)}
        if payload.tier:  # the name in this site's exports
            reported["service_tier"] = payload.tier
        response.usage, response.provider_details = read_usage(reported), details_of(reported) or None
        response.finish_reason = named(payload.finish_reason)
    extended = projection.extend_answer(response) if payload.continues and event.message is not None else None
    # In a log that is copied, an event without text and calls follows the answer that it ends.
    is_added = not parts and event.message is None and projection.run.step_count and projection.follows_answer()
    step = projection.run.step_count if extended or is_added else projection.next_step
    row = extended if extended or is_added else projection.add_answer(response, at=event.ts)
    known: dict[str, Any]
    if extended is not None and not tokens_of(response.usage):
        known = {}
    elif projection.calls is not None and projection.calls.is_counted_elsewhere(event, step):
        known = {"repeated": True, "model": (response.model_name or "")[:200] or None}
    else:
        known = _count_usage(projection, event, payload, response, step)
    known |= {**dict.fromkeys(("text", "thinking", "usage")), "tool_calls": len(response.tool_calls) or None}
    known["finish_reason"] = response.finish_reason or payload.finish_reason
    stored = payload.model_copy(update=known)
    return projection.append(projection.entry_of(event, stored, step=step, ref_id=None if row is None else row.id))


def _count_usage(
    projection: Projection, event: IncomingEvent, payload: LlmTurnEnd, response: ModelResponse, step: int
) -> dict[str, Any]:
    """Add the usage of a model call to the run, and return the usage fields of its event."""
    duration_ms = tool_events.whole_milliseconds(payload.duration_ms)
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


def apply_turn_abandoned(projection: Projection, event: IncomingEvent, payload: LlmTurnAbandoned) -> int:
    """Append the end of a model call without an answer. Its usage is kept in `extra`, because no row counts it."""
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
    """Return the calls of an answer. Of calls with the same ID, only the first is returned."""
    return list({call.id: call for call in reversed(calls)}.values())[::-1]
