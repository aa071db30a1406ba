"""The items of a session that is still running. Its last answer may be incomplete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from runs.external.event_input import IncomingEvent
from runs.external.importers.answer_events import event_id
from runs.external.importers.base import GrowingEvent, ImportedRun, Item
from timeline.events import EventType
from timeline.events.llm import LlmText, LlmThinking


def live_items(read: Callable[[], Iterable[Item]]) -> Iterator[Item]:
    """Yield the items, with the texts of an incomplete answer instead of its end and its calls.

    `read` is called twice, and returns the same items each time.
    """
    last = _last_answers(read())
    for item in read():
        answer = last.get(item.run_ref)
        if answer is None or isinstance(item, ImportedRun):
            yield item
        elif item.event_id == answer.event_id:
            yield from _texts(answer)
        elif item.type != EventType.TOOL_START or not _is_of(answer, item):
            yield item


def _last_answers(items: Iterable[Item]) -> dict[str, GrowingEvent]:
    """Return the last answer of each run that may still grow."""
    last: dict[str, GrowingEvent] = {}
    for item in items:
        if isinstance(item, ImportedRun) or item.type == EventType.IMPORT_LEFT_OUT:
            continue
        if isinstance(item, GrowingEvent):
            last[item.run_ref] = item
        elif item.run_ref in last and not _is_of(last[item.run_ref], item):
            del last[item.run_ref]
    return {run_ref: answer for run_ref, answer in last.items() if not _has_ended(answer)}


def _is_of(answer: GrowingEvent, event: IncomingEvent) -> bool:
    """Return whether the event is the start of a call of the answer."""
    if event.type != EventType.TOOL_START or not isinstance(answer.message, ModelResponse):
        return False
    return getattr(event.payload, "call_id", None) in {call.tool_call_id for call in answer.message.tool_calls}


def _has_ended(answer: GrowingEvent) -> bool:
    return isinstance(answer.message, ModelResponse) and answer.message.finish_reason is not None


def _texts(answer: GrowingEvent) -> Iterator[IncomingEvent]:
    for number, parts in enumerate(answer.pieces()):
        for index, part in enumerate(parts):
            if isinstance(part, ThinkingPart | TextPart) and part.content:
                payload = (LlmThinking if isinstance(part, ThinkingPart) else LlmText)(text=part.content)
                piece_id = event_id(f"piece:{answer.begin_id}:{number}:{index}")
                yield IncomingEvent(answer.run_ref, payload.event_type, payload, event_id=piece_id, ts=answer.ts)
