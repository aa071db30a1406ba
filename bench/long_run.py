"""Generates a run of any number of events: model turns with deltas, and tool calls, in the order of real runs.

Import it after Django was set up, because it imports the product.
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
    """Return event `number`, counted from 1. Its texts are generated and need no redaction."""
    step, position = divmod(number - 1, PER_STEP)
    type_, texts = events_of_step(step % STEPS)[position]
    return Entry(texts, type_, step=step, clean=True)


@lru_cache(maxsize=STEPS)
def events_of_step(step: int) -> list[tuple[EventType, dict[str, Any]]]:
    """Return the events of one step. Contents are in the payloads, as for external runs."""
    recorded_step = _steps()[step]
    call = {"call_id": recorded_step.call_id, "tool_name": recorded_step.tool}
    counts = {"input_tokens": 1800 + step, "output_tokens": 260, "duration_ms": 3400, "finish_reason": "tool_use"}
    return [
        (EventType.LLM_TURN_START, {"model": "made-up-1"}),
        *[
            (EventType.LLM_TEXT_DELTA, {"text": piece, "index": at})
            for at, piece in enumerate(_pieces(recorded_step.text))
        ],
        (EventType.MESSAGE_ADDED, {"role": "assistant", "content": recorded_step.text}),
        (EventType.LLM_TURN_END, {"model": "made-up-1", "tool_calls": 1, **counts}),
        (EventType.TOOL_START, {**call, "arguments": recorded_step.arguments}),
        (EventType.TOOL_OUTPUT, {"call_id": recorded_step.call_id, "text": recorded_step.output}),
        (EventType.TOOL_END, {**call, "status": "completed", "duration_ms": 42, "output": recorded_step.output}),
        (EventType.MESSAGE_ADDED, {"role": "tool_result", "preview": recorded_step.output[:200], "truncated": True}),
    ]


@lru_cache(maxsize=1)
def _steps() -> list[payload.PayloadStep]:
    return payload.steps(STEPS)


def _pieces(text: str) -> list[str]:
    size = -(-len(text) // DELTAS)
    return [text[at : at + size] for at in range(0, len(text), size)]
