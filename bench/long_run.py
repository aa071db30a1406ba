"""A run of as many events as one likes: model turns that stream, and tool calls, in the order of the product's own.

Imports the product, so it is imported after Django was set up.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import transaction

from bench import payload
from timeline import log
from timeline.events import EventType
from timeline.log import Entry
from timeline.models import Source

BATCH = 500
#: Different steps; after them the same texts come again.
STEPS = 200
DELTAS = 3
#: The turn's start, its pieces, its message and its end; the call's start, its output, its end and its message.
PER_STEP = 3 + DELTAS + 4


def fill(log_id: UUID, count: int) -> None:
    """Append the first `count` events."""
    for first in range(1, count + 1, BATCH):
        with transaction.atomic():
            numbers = range(first, min(first + BATCH, count + 1))
            log.append(log_id, [entry(number) for number in numbers], source=Source.INGEST)


def entry(number: int) -> Entry:
    """The event of that number, from 1 on. Its texts are made up: they need not be looked through for secrets."""
    step, place = divmod(number - 1, PER_STEP)
    type_, told = events_of_step(step % STEPS)[place]
    return Entry(told, type_, step=step, clean=True)


@lru_cache(maxsize=STEPS)
def events_of_step(step: int) -> list[tuple[EventType, dict[str, Any]]]:
    """Of one step. What the product keeps in rows of its own stands in the payloads, as an external runner sends it."""
    said = _steps()[step]
    call = {"call_id": said.call_id, "tool_name": said.tool}
    counts = {"input_tokens": 1800 + step, "output_tokens": 260, "duration_ms": 3400, "finish_reason": "tool_use"}
    return [
        (EventType.LLM_TURN_START, {"model": "made-up-1"}),
        *[(EventType.LLM_TEXT_DELTA, {"text": piece, "index": at}) for at, piece in enumerate(_pieces(said.text))],
        (EventType.MESSAGE_ADDED, {"role": "assistant", "content": said.text}),
        (EventType.LLM_TURN_END, {"model": "made-up-1", "tool_calls": 1, **counts}),
        (EventType.TOOL_START, {**call, "arguments": said.arguments}),
        (EventType.TOOL_OUTPUT, {"call_id": said.call_id, "text": said.output}),
        (EventType.TOOL_END, {**call, "status": "completed", "duration_ms": 42, "output": said.output}),
        (EventType.MESSAGE_ADDED, {"role": "tool_result", "preview": said.output[:200], "truncated": True}),
    ]


@lru_cache(maxsize=1)
def _steps() -> list[payload.Step]:
    return payload.steps(STEPS)


def _pieces(text: str) -> list[str]:
    size = -(-len(text) // DELTAS)
    return [text[at : at + size] for at in range(0, len(text), size)]
