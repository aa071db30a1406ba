"""A model that follows a script, and tools that record their calls in a ledger outside the database.

Importing this module registers the provider `scripted`, the tools `ledger_*` and the Celery task `tests.hold`. Workers
import it through process_settings.py. The script is part of the agent's settings, so the run carries it:

- `calls`: for each step, the names of the tools to request, in order; the answer after the last step is final.
- `arguments`: the arguments of the calls, by the name of the tool.
- `chunks`, `pause_s`: the number of pieces in which each answer's text arrives, and the pause before each, in seconds.
- `ledger`: the file of the effects. `<ledger>.calls` gets one line per model call.
- `tool_sleep_s`: how long a tool keeps running after its effect, in seconds.
- `play`: the name of a function in PLAYS that yields the moves of each call instead; in-process tests only.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from celery import shared_task
from django.apps import AppConfig
from django.conf import settings
from pydantic_ai.messages import ModelResponseStreamEvent, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.usage import RequestUsage

from runs.providers.base import PROVIDERS, FollowUp, ModelCall
from runs.providers.streaming_provider import AnswerEnd
from runs.statuses import Effect
from runs.tools.base import ToolContext
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool

#: Text to stream, seconds to wait, a complete part, the finish reason, an error to raise, or a function to call.
Move = str | float | TextPart | ThinkingPart | ToolCallPart | AnswerEnd | Exception | Callable[[], None]
Play = Callable[[ModelCall], Iterable[Move]]

PLAYS: dict[str, Play] = {}
PIECE = "The model thinks aloud about what it is going to do in this step, and says so at length. "


class ScriptedConfig(AppConfig):
    name = "tests.support.scripted_model"
    label = "scripted"
    path = str(Path(__file__).parent)


def append(path: str, *words: object) -> None:
    """Append one line in one write, and flush it to the disk."""
    descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- The model --------------------------------------------------------------------------------------------------


class ScriptedStream(StreamedResponse):
    """Makes the moves of one call in order."""

    def __init__(self, moves: Iterable[Move]) -> None:
        super().__init__(ModelRequestParameters())
        self._moves = moves

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for number, move in enumerate(self._moves):
            if isinstance(move, Exception):
                raise move
            if isinstance(move, str):
                for event in self._parts_manager.handle_text_delta(vendor_part_id="text", content=move):
                    yield event
            elif isinstance(move, float):
                await asyncio.sleep(move)
            elif isinstance(move, AnswerEnd):
                # As of a library that does not know the provider's word: the engine names it.
                refusal = {"refusal": move.explanation} if move.explanation else {}
                self.provider_details = {"finish_reason": move.finish_reason, **refusal}
            elif callable(move):
                move()
            else:
                yield self._parts_manager.handle_part(vendor_part_id=number, part=move)

    async def close_stream(self) -> None:
        """Do nothing: no connection is open."""

    @property
    def usage(self) -> RequestUsage:
        return RequestUsage(input_tokens=100, output_tokens=10)

    @property
    def model_name(self) -> str:
        return "scripted-model"

    @property
    def provider_name(self) -> str:
        return "scripted"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return datetime.now(UTC)


class ScriptedProvider:
    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        """Accept every script."""

    @asynccontextmanager
    async def open(self, call: ModelCall) -> AsyncIterator[StreamedResponse]:
        if call.settings.get("ledger"):
            append(f"{call.settings['ledger']}.calls", call.number, len(call.history))
        play = PLAYS[call.settings["play"]] if "play" in call.settings else by_the_script
        yield ScriptedStream(play(call))

    def context_window(self, model: str) -> int | None:
        return None

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        return FollowUp()


PROVIDERS.add("scripted", ScriptedProvider)


def by_the_script(call: ModelCall) -> Iterable[Move]:
    """Yield moves that depend only on the number of the call and the settings."""
    wanted = call.settings["calls"]
    asked = wanted[call.number - 1] if call.number <= len(wanted) else []
    yield f"Step {call.number}. " if asked else "All done. "
    for number in range(call.settings.get("chunks", 0)):
        yield float(call.settings.get("pause_s", 0.0))
        yield f"{number}: {PIECE}"
    for place, name in enumerate(asked):
        given = call.settings.get("arguments", {}).get(name) or {"n": call.number * 10 + place}
        given = {"question": "Which one?"} if name == "ask_user" else given
        yield ToolCallPart(name, given, tool_call_id=f"call-{call.number}-{place}")


# --- The tools --------------------------------------------------------------------------------------------------


def effect(ctx: ToolContext, n: int) -> str:
    """Append a line to the ledger, an effect that must not happen twice. Keep running for `tool_sleep_s` afterwards."""
    append(ctx.settings["ledger"], ctx.run_id, ctx.call_id, ctx.idempotency_key, ctx.attempt, ctx.epoch)
    time.sleep(float(ctx.settings.get("tool_sleep_s", 0)))
    return f"did {n}"


@tool(effect=Effect.READ, timeout_s=60)
def ledger_read(ctx: ToolContext, n: int) -> str:
    """Looks something up."""
    return effect(ctx, n)


@tool(effect=Effect.IDEMPOTENT, timeout_s=60)
def ledger_idempotent(ctx: ToolContext, n: int) -> str:
    """Does something that the other side knows again by its key."""
    return effect(ctx, n)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=60)
def ledger_once(ctx: ToolContext, n: int) -> str:
    """Does something that cannot be taken back."""
    return effect(ctx, n)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=60, needs_approval=True)
def ledger_approved(ctx: ToolContext, n: int) -> str:
    """Does something that cannot be taken back and that a person has to approve."""
    return effect(ctx, n)


for each in (ledger_read, ledger_idempotent, ledger_once, ledger_approved):
    TOOLS.register(each)


@shared_task(name="tests.hold")
def hold() -> None:
    """Block a Celery thread. Creates the file `held` in the worker's home, and waits for the file `let_go`."""
    (settings.AGENTOPS_HOME / "held").touch()
    while not (settings.AGENTOPS_HOME / "let_go").exists():
        time.sleep(0.02)
