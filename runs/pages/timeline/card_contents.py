"""Fill cards with the contents of events and of the rows that they refer to.

The text of a row takes precedence over the preview in the payload. Events of external runners may have no row: their
cards display the payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.urls import reverse

from runs.pages.content.call_arguments import leading_argument
from runs.pages.content.images import MediaPart
from runs.pages.content.terminal_text import colours_of
from runs.pages.timeline.cards import (
    LINE,
    MOST_CHIPS,
    OTHER_BYTES,
    TEXT_BYTES,
    CardMedia,
    MessageCard,
    PlannedCall,
    ToolCard,
    TurnCard,
    external_call_card_id,
)
from runs.pages.timeline.event_texts import CallRow, EventTexts, MessageRow
from timeline.display import Clip, clean, clip, format_json
from timeline.models import Event, Source

Payload = Mapping[str, Any]
#: Maximum bytes of the name of a tool or of an actor.
NAME_BYTES = 200
#: Numbers of `llm.turn.end` that a turn card displays.
COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "duration_ms")


def fill_answer(turn: TurnCard, texts: EventTexts, message: MessageRow) -> None:
    """Fill the card with the row of its assistant message."""
    turn.href = f"{texts.base}/messages/{message.id}"
    turn.text, turn.thinking, turn.media = message.text, message.thinking, _media(message.media, turn.href)
    _set_requested_calls(
        turn, [(name, texts.cards.get((message.id, call_id), "")) for name, call_id in message.requested_calls]
    )


def fill_from_message_added(turn: TurnCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    """Fill the card from a `message.added` event."""
    message = texts.message_of(event)
    turn.streaming = False
    if message is not None:
        fill_answer(turn, texts, message)
    else:
        turn.text = _payload_text(payload, TEXT_BYTES)
        turn.href = f"{texts.base}/events/{event.seq}"
        use_streamed_text(turn)


def fill_from_turn_end(turn: TurnCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    """Fill the card from an `llm.turn.end` event."""
    message = texts.message_of(event)
    if message is not None:
        fill_answer(turn, texts, message)
    else:
        if text := _clip(payload.get("text"), TEXT_BYTES):
            turn.text, turn.href = text, f"{texts.base}/events/{event.seq}"
        turn.thinking = _clip(payload.get("thinking"), OTHER_BYTES) or turn.thinking
        _set_requested_calls(turn, _external_calls(event.step, payload))
        use_streamed_text(turn)
    turn.streaming = False
    turn.attempt = whole_number(payload.get("attempt"))
    turn.model = clean(str(payload.get("model") or turn.model))
    turn.end = {name: whole_number(payload.get(name)) for name in COUNTS}
    for name in ("cost_usd", "finish_reason"):
        turn.end[name] = clean(str(payload.get(name) or ""))


def use_streamed_text(turn: TurnCard) -> None:
    """Use the streamed text of a turn whose full text was not stored."""
    turn.text = turn.text or clip("".join(turn.streamed), TEXT_BYTES)
    turn.thinking = turn.thinking or clip("".join(turn.streamed_thinking), OTHER_BYTES)


def fill_message(card: MessageCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    """Fill the card of a message from its row or, without one, from the payload."""
    message = texts.message_of(event)
    if message is not None:
        card.href = f"{texts.base}/messages/{message.id}"
        card.text, card.media = message.text, _media(message.media, card.href)
    else:
        card.text = _payload_text(payload, TEXT_BYTES if card.is_markdown else OTHER_BYTES)
        card.href = f"{texts.base}/events/{event.seq}"


def _media(parts: Iterable[MediaPart], message_href: str) -> list[CardMedia]:
    return [CardMedia(part.name, f"{message_href}/media/{part.number}" if part.is_picture else "") for part in parts]


def _set_requested_calls(turn: TurnCard, calls: list[tuple[str, str]]) -> None:
    turn.requested_calls = [PlannedCall(_name(name) or "tool", card) for name, card in calls[:MOST_CHIPS]]
    turn.more_calls = max(len(calls) - MOST_CHIPS, 0)


def _external_calls(step: int | None, payload: Payload) -> list[tuple[str, str]]:
    """Return names and card IDs of the tool calls that an external runner reports in `llm.turn.end`."""
    calls = payload.get("tool_calls")
    objects = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [(str(call.get("name") or ""), external_call_card_id(step, str(call.get("id") or ""))) for call in objects]


def fill_from_tool_start(tool: ToolCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    """Fill the card from a `tool.start` event."""
    row = _set_call(tool, texts, event, payload)
    tool.status, tool.since, tool.needs_outcome = "running", event.ts, False
    tool.attempt, tool.starts = whole_number(payload.get("attempt")), tool.starts + 1
    tool.effect = clean(str(payload.get("effect") or ""))
    _set_arguments(tool, row.input if row else payload.get("arguments"))
    tool.output, tool.colours, tool.streamed, tool.duration_ms = Clip(), (), [], None


def fill_from_tool_end(tool: ToolCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    """Fill the card from a `tool.end` event."""
    row = _set_call(tool, texts, event, payload)
    tool.needs_outcome, tool.is_recorded = False, event.source in (Source.IMPORT, Source.INGEST)
    tool.status = clean(str(payload.get("status") or ("error" if payload.get("error") else "completed")))
    duration = payload.get("duration_ms")
    tool.duration_ms = duration if isinstance(duration, int) else None
    if row is not None and not tool.arguments:
        _set_arguments(tool, row.input)
    if row is not None and row.result_id is not None:
        tool.output, tool.colours, tool.has_unsent_output = row.output, row.colours, row.has_unsent_output
        tool.output_href = f"{tool.href}?download=output"
        tool.media = _media(row.media, f"{texts.base}/messages/{row.result_id}")
    else:
        output = next((payload[name] for name in ("output", "error", "preview") if payload.get(name)), None)
        tool.output = _clip(output, OTHER_BYTES) or clip("".join(tool.streamed), OTHER_BYTES)
        tool.colours = colours_of(output, tool.output.text) if isinstance(output, str) else ()
        tool.output_href = f"{texts.base}/events/{event.seq}?download=text" if output is not None else ""
    tool.resolution = resolution_text(tool.status, row.resolved_by) if row is not None else ""
    if row is not None and row.child_run_id is not None:
        tool.child_href = reverse("runs:detail", args=[row.child_run_id])


def resolution_text(status: str, by: str) -> str:
    """Return who resolved the unknown outcome of a call; empty if the outcome was observed."""
    outcome = {"completed": "done", "error": "failed"}.get(status)
    return f"Marked as {outcome} by {_name(by)}, not observed" if by and outcome else ""


def _set_arguments(tool: ToolCard, arguments: Any) -> None:
    """Set the arguments of a card, unless they are empty."""
    if arguments in (None, {}, ""):
        return
    tool.arguments = arguments
    tool.summary = one_line(arguments)


def one_line(arguments: Any) -> str:
    """Return the most informative argument, or else all, in one line of at most LINE characters."""
    if arguments in (None, {}, ""):
        return ""
    line = leading_argument(arguments) if isinstance(arguments, dict) else str(arguments)
    if not line and isinstance(arguments, dict):
        line = ", ".join(f"{name}: {value}" if name else str(value) for name, value in arguments.items())
    # Only the start of a long text is split into words.
    return clip(" ".join(line[: 4 * LINE].split()), LINE).text


def _set_call(tool: ToolCard, texts: EventTexts, event: Event, payload: Payload) -> CallRow | None:
    """Set the name, call ID, step and link of a card. Return the row of the event's call, or None."""
    row = texts.call_of(event)
    tool.name = _name(row.name if row else str(payload.get("tool_name") or tool.name)) or "tool"
    tool.call_id = _name(row.call_id if row else str(payload.get("call_id") or ""))
    tool.step = event.step
    tool.executor = "process" if row is not None and row.is_remote else "worker"
    tool.href = f"{texts.base}/calls/{row.id}" if row else f"{texts.base}/events/{event.seq}"
    return row


def whole_number(value: Any) -> int:
    """Return a non-negative integer of a payload; 0 for any other value."""
    return value if isinstance(value, int) and value >= 0 else 0


def _payload_text(payload: Payload, limit: int) -> Clip:
    """Return the text of a message without a row, from the payload of its event."""
    content = payload.get("content")
    if content is not None:
        return _clip(content, limit)
    preview = str(payload.get("preview") or "")
    return clip(f"{preview}…" if payload.get("truncated") else preview, limit)


def _clip(value: Any, limit: int) -> Clip:
    """Return a text, or another value as JSON, truncated; empty for None."""
    return Clip() if value is None else clip(value if isinstance(value, str) else format_json(value), limit)


def _name(text: str) -> str:
    return clip(text, NAME_BYTES).text
