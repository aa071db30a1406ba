"""The streamed text and thinking of model calls, from the log: the recorded pace of a fixture."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from runs.fixtures.format import ContentEvent
from timeline import database_clock
from timeline.events import EventType
from timeline.models import Event

_DELTAS = (EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA)
_WHOLE = (EventType.LLM_TEXT, EventType.LLM_THINKING)
_KINDS = {"text": TextPart, "thinking": ThinkingPart}
#: A run of the conversation and the number of a step.
CallKey = tuple[UUID, int | None]


class StreamedCall:
    """The events of one model call, oldest first, with their times."""

    def __init__(self, began_at: datetime) -> None:
        self.began_at = began_at
        self.was_streamed = False
        self.events: list[ContentEvent] = []

    def add(self, kind: str, text: str, at: datetime) -> None:
        at_ms = database_clock.milliseconds_between(self.began_at, at)
        last = self.events[-1].at_ms if self.events else 0
        event = ContentEvent.model_validate({"type": kind, "content": text, "atMs": max(at_ms, last)}, by_alias=True)
        self.events.append(event)

    def agreeing(self, response: ModelResponse) -> list[ContentEvent]:
        """Return the events of each kind that add up to what the response has of it.

        They do not after a change of the redaction rules, or where another program sent less than the whole.
        """
        if not self.was_streamed:
            return []
        kinds = {kind for kind, part_type in _KINDS.items() if self._joined(kind) == _content(response, part_type)}
        return [event for event in self.events if event.type in kinds]

    def _joined(self, kind: str) -> str:
        return "".join(event.content for event in self.events if event.type == kind)


def streamed_calls(run_ids: Iterable[UUID]) -> dict[CallKey, StreamedCall]:
    """Return what the logs of these runs have of each model call. Of a repeated call, the last attempt counts."""
    types = [EventType.LLM_TURN_START, *_DELTAS, *_WHOLE]
    events = Event.objects.filter(log__in=list(run_ids), type__in=types, step__isnull=False).order_by("log", "seq")
    calls: dict[CallKey, StreamedCall] = {}
    for log_id, step, kind, at, payload in events.values_list("log", "step", "type", "ts", "payload"):
        if kind == EventType.LLM_TURN_START:
            calls[log_id, step] = StreamedCall(at)
            continue
        call = calls.setdefault((log_id, step), StreamedCall(at))
        call.was_streamed |= kind in _DELTAS
        call.add(kind.split(".")[1], str(payload.get("text") or ""), at)
    return calls


def _content(response: ModelResponse, part_type: type[TextPart | ThinkingPart]) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, part_type))
