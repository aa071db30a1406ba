"""What an event and the rows behind it write into a card.

The row's text wins over the payload's preview; where there is no row (a log that only tells of a run elsewhere), the
payload is all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.urls import reverse

from runs.pages.timeline.cards import (
    LINE,
    MOST_CHIPS,
    OTHER_BYTES,
    TEXT_BYTES,
    MessageCard,
    PlannedCall,
    ToolCard,
    TurnCard,
    call_card,
)
from runs.pages.timeline.event_texts import CallRow, EventTexts, MessageRow
from timeline.models import Event
from timeline.shown import Clip, clean, clip, pretty

Payload = Mapping[str, Any]
NAME_BYTES = 200
#: What the card of an answer says of `llm.turn.end`.
COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "duration_ms")


# --- Answers ------------------------------------------------------------------------------------------------------


def answer(turn: TurnCard, texts: EventTexts, message: MessageRow) -> None:
    turn.text, turn.thinking, turn.media = message.text, message.thinking, list(message.media)
    turn.href = f"{texts.base}/messages/{message.id}"
    _ask(turn, [(name, texts.cards.get((message.id, call_id), "")) for name, call_id in message.asked])


def answer_from(turn: TurnCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    """Of `message.added`."""
    message = texts.messages.get(event.ref_id) if event.ref_id else None
    turn.streaming = False
    if message is not None:
        answer(turn, texts, message)
    else:
        turn.text = _told(payload, TEXT_BYTES)
        settle(turn)


def end_of_turn(turn: TurnCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    """Of `llm.turn.end`."""
    message = texts.messages.get(event.ref_id) if event.ref_id else None
    if message is not None:
        answer(turn, texts, message)
    else:
        turn.text = _clip(payload.get("text"), TEXT_BYTES) or turn.text
        turn.thinking = _clip(payload.get("thinking"), OTHER_BYTES) or turn.thinking
        _ask(turn, _requests(event.step, payload))
        settle(turn)
    turn.streaming = False
    turn.attempt = whole_number(payload.get("attempt"))
    turn.model = clean(str(payload.get("model") or turn.model))
    turn.end = {name: whole_number(payload.get(name)) for name in COUNTS}
    for name in ("cost_usd", "finish_reason"):
        turn.end[name] = clean(str(payload.get(name) or ""))


def settle(turn: TurnCard) -> None:
    """What has streamed in is all there is: nobody stored the whole."""
    turn.text = turn.text or clip("".join(turn.streamed), TEXT_BYTES)
    turn.thinking = turn.thinking or clip("".join(turn.streamed_thinking), OTHER_BYTES)


def said(card: MessageCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    message = texts.messages.get(event.ref_id) if event.ref_id else None
    if message is not None:
        card.text, card.media = message.text, list(message.media)
        card.href = f"{texts.base}/messages/{message.id}"
    else:
        card.text = _told(payload, OTHER_BYTES)
        card.href = f"{texts.base}/events/{event.seq}"


def _ask(turn: TurnCard, calls: list[tuple[str, str]]) -> None:
    turn.asked = [PlannedCall(_name(name), card) for name, card in calls[:MOST_CHIPS]]
    turn.more_asked = max(len(calls) - MOST_CHIPS, 0)


def _requests(step: int | None, payload: Payload) -> list[tuple[str, str]]:
    """The calls that an external runner names in `llm.turn.end`."""
    calls = payload.get("tool_calls")
    named = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [(str(call.get("name") or ""), call_card(step, str(call.get("id") or ""))) for call in named]


# --- Tool calls ---------------------------------------------------------------------------------------------------


def start_of_call(tool: ToolCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    row = _row(tool, texts, event, payload)
    tool.status, tool.since, tool.awaits = "running", event.ts, False
    tool.attempt, tool.starts = whole_number(payload.get("attempt")), tool.starts + 1
    tool.effect = row.effect if row else clean(str(payload.get("effect") or ""))
    _show_arguments(tool, row.input if row else payload.get("arguments"))
    tool.output, tool.streamed, tool.duration_ms = Clip(), [], None


def end_of_call(tool: ToolCard, texts: EventTexts, event: Event, payload: Payload) -> None:
    row = _row(tool, texts, event, payload)
    tool.awaits = False
    tool.status = clean(str(payload.get("status") or ("error" if payload.get("error") else "completed")))
    duration = payload.get("duration_ms")
    tool.duration_ms = duration if isinstance(duration, int) else None
    if row is not None and not tool.arguments:
        _show_arguments(tool, row.input)
    if row is not None and row.result_id is not None:
        tool.output, tool.kept_more = row.output, row.kept_more
    else:
        outcome = next((payload[name] for name in ("output", "error", "preview") if payload.get(name)), None)
        tool.output = _clip(outcome, OTHER_BYTES) or clip("".join(tool.streamed), OTHER_BYTES)
    tool.declared = declared(tool.status, row.resolved_by) if row is not None else ""
    if row is not None and row.child_run_id is not None:
        tool.child_href = reverse("runs:detail", args=[row.child_run_id])


def declared(status: str, by: str) -> str:
    """Return who declared the outcome of a call; empty where it was observed."""
    outcome = {"completed": "done", "error": "failed"}.get(status)
    return f"Reported {outcome} by {_name(by)}, not observed" if by and outcome else ""


def _show_arguments(tool: ToolCard, arguments: Any) -> None:
    if arguments in (None, {}, ""):
        return
    tool.arguments = clip(pretty(arguments), OTHER_BYTES)
    tool.summary = one_line(arguments)


def one_line(arguments: Any) -> str:
    """Arguments where they are not opened."""
    if arguments in (None, {}, ""):
        return ""
    members = arguments.items() if isinstance(arguments, dict) else [("", arguments)]
    line = ", ".join(f"{name}: {value}" if name else str(value) for name, value in members)
    return clip(" ".join(line[: 4 * LINE].split()), LINE).text


def _row(tool: ToolCard, texts: EventTexts, event: Event, payload: Payload) -> CallRow | None:
    """The row of the event's call, with which the card is named."""
    row = texts.calls.get(event.ref_id) if event.ref_id else None
    tool.name = _name(row.name if row else str(payload.get("tool_name") or tool.name or "tool"))
    tool.call_id = _name(row.call_id if row else str(payload.get("call_id") or ""))
    tool.step = event.step
    tool.href = f"{texts.base}/calls/{row.id}" if row else f"{texts.base}/events/{event.seq}"
    return row


# --- Values -------------------------------------------------------------------------------------------------------


def whole_number(value: Any) -> int:
    """A payload's number; 0 for whatever else stands there."""
    return value if isinstance(value, int) and value >= 0 else 0


def _told(payload: Payload, limit: int) -> Clip:
    """The content of a message that no row holds."""
    content = payload.get("content")
    if content is not None:
        return _clip(content, limit)
    beginning = str(payload.get("preview") or "")
    return clip(f"{beginning}…" if payload.get("truncated") else beginning, limit)


def _clip(value: Any, limit: int) -> Clip:
    return Clip() if value is None else clip(value if isinstance(value, str) else pretty(value), limit)


def _name(text: str) -> str:
    return clip(text, NAME_BYTES).text
