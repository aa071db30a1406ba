"""A model whose answers depend only on its seed and the conversation, and tools whose effects the ledger records.

Importing this module registers the provider `chaos` and the tools `look_up` (read), `place_order` (idempotent) and
`pay` (at most once); workers load it through settings.py. The agent carries the settings:

- `seed`: determines the answers. `length`: number of steps with tools before the last answer.
- `ledger`: URL of the ledger. `faults`: whether model requests fail occasionally.
- `explodes_at`: number of the request whose answer calls the tool `explode` (read), which kills its process; 0: none.
- `helpers`: agents of the child runs that the answer to the second request opens.
- `pause_s`: delay before each piece of an answer. `busy_s`: duration of a tool, before and after its effect.

The same seed and conversation always give the same answer. Messages from people (`note …`, `continue`) do not change
it, so a run that was paused or received messages can be compared with an undisturbed one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from django.apps import AppConfig
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage

from runs.providers.base import PROVIDERS, FollowUp, ModelCall
from runs.statuses import Effect
from runs.tools.base import OutcomeUnknown, ToolContext
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool
from tests.chaos.environment import ledger_client
from tests.support.scripted_model import Move, ScriptedStream

NAMES = ("look_up", "place_order", "pay")
EXPLODE, SPAWN = "explode", "spawn_agents"
#: Number of the request whose answer opens child runs.
SPAWNS_AT = 2
RUN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Messages from people that the model ignores.
NOTE, CONTINUE = "note ", "continue"
#: Maximum number of failures of one step's requests, below the limit at which a run fails.
MOST_FAULTS = 2


class ChaosConfig(AppConfig):
    name = "tests.chaos"
    label = "chaos"
    path = str(Path(__file__).parent)

    def ready(self) -> None:
        from tests.chaos.environment import process_hooks

        process_hooks.install()


# --- Answers of the model ---------------------------------------------------------------------------------------


def digest(*words: object) -> str:
    return hashlib.sha256(json.dumps(words, sort_keys=True, default=str).encode()).hexdigest()[:10]


def outside(text: object) -> bool:
    """Return whether a user turn is a message from a person rather than part of the script."""
    return isinstance(text, str) and (text == CONTINUE or text.startswith(NOTE))


def said(history: list[ModelMessage]) -> Iterator[list[Any]]:
    """Yield the conversation without times and IDs."""
    for message in history:
        for part in message.parts:
            match part:
                case TextPart(content=text):
                    yield ["text", text]
                case ToolCallPart():
                    yield ["call", part.tool_name, part.args, part.tool_call_id]
                case ToolReturnPart():
                    yield ["return", part.tool_call_id, without_ids(part.content)]
                case UserPromptPart(content=text) if not outside(text):
                    yield ["user", text]


def without_ids(value: Any) -> Any:
    """Return the JSON value with each run ID replaced, because run IDs differ between runs."""
    return json.loads(RUN_ID.sub("run", json.dumps(value)))


def length_of(settings: Mapping[str, Any]) -> int:
    return int(settings.get("length") or 3 + Random(f"length {settings['seed']}").randrange(6))


def wanted(settings: Mapping[str, Any], number: int, history: list[ModelMessage]) -> list[ToolCallPart]:
    """Return the tool calls in the answer to request `number`: one to four, or none in the last answer."""
    if number == settings.get("explodes_at"):
        return [ToolCallPart(EXPLODE, "{}", tool_call_id=f"call-{number}-0")]
    if number > length_of(settings):
        return []
    if number == SPAWNS_AT and settings.get("helpers"):
        tasks = [{"agent": slug, "prompt": "Go."} for slug in settings["helpers"]]
        return [ToolCallPart(SPAWN, {"tasks": tasks}, tool_call_id=f"call-{number}-0")]
    dice = Random(f"{settings['seed']} {number} {digest(*said(history))}")
    count = dice.choices([1, 2, 3, 4], [50, 30, 12, 8])[0]
    return [_call(dice, number, index) for index in range(count)]


def _call(dice: Random, number: int, index: int) -> ToolCallPart:
    name, n, kind = dice.choice(NAMES), dice.randrange(10**6), dice.random()
    arguments: str | dict[str, Any] = {"n": n}
    if kind < 0.03:
        arguments = '{"n": '  # cut off
    elif kind < 0.06:
        arguments = {"number": n}
    elif kind < 0.09:
        name = "no_such_tool"
    return ToolCallPart(name, arguments, tool_call_id=f"call-{number}-{index}")


def fault_of(settings: Mapping[str, Any], number: int, ordinal: int) -> str:
    """Return how the `ordinal`-th request for a step fails, or "" if it succeeds."""
    if not settings.get("faults") or ordinal > MOST_FAULTS:
        return ""
    dice = Random(f"fault {settings['seed']} {number} {ordinal}")
    return dice.choice(["rate limit", "server error", "broken stream"]) if dice.random() < 0.12 else ""


def moves(call: ModelCall, ordinal: int) -> Iterator[Move]:
    calls = wanted(call.settings, call.number, call.history)
    fault = fault_of(call.settings, call.number, ordinal)
    words = digest(call.settings["seed"], call.number, *said(call.history))
    yield f"Step {call.number}: " if calls else "Done: "
    for piece in range(1 + int(words, 16) % 6):
        yield float(call.settings.get("pause_s", 0.0))
        # Long enough for a part to be displayed: text that may be the start of a secret is held back.
        yield f"{words[piece:]} says the model, and says so at length, so that something of it is shown meanwhile. "
        if fault and piece == 0:
            raise ConnectionResetError("the stream broke")
    yield from calls


class Stream(ScriptedStream):
    def __init__(self, call: ModelCall, ordinal: int) -> None:
        super().__init__(moves(call, ordinal))
        self._tokens = 50 + int(digest(call.settings["seed"], call.number), 16) % 100

    @property
    def usage(self) -> RequestUsage:
        return RequestUsage(input_tokens=self._tokens * 10, output_tokens=self._tokens)


class ChaosProvider:
    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        """Accept every model and setting."""

    @asynccontextmanager
    async def open(self, call: ModelCall) -> AsyncIterator[StreamedResponse]:
        url = call.settings["ledger"]
        told = await asyncio.to_thread(ledger_client.tell, url, "request", agent=call.node, step=call.number)
        ordinal = told["ordinal"]
        match fault_of(call.settings, call.number, ordinal):
            case "rate limit":
                raise ModelHTTPError(429, call.model, "slow down")
            case "server error":
                raise ModelHTTPError(500, call.model, "out of order")
        yield Stream(call, ordinal)

    def context_window(self, model: str) -> int | None:
        return None

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        """Return a scripted user turn after some answers of a talkative model. It changes the conversation."""
        speaks = model.startswith("talkative") and Random(f"{model} {number}").random() < 0.2
        return FollowUp(user=f"And what of {number}?") if speaks else FollowUp()


PROVIDERS.add("chaos", ChaosProvider)


# --- Tools ------------------------------------------------------------------------------------------------------


def act(ctx: ToolContext, name: str, effect: Effect, n: int) -> str:
    time.sleep(float(ctx.settings.get("busy_s", 0)))
    answer = ledger_client.tell(
        ctx.settings["ledger"],
        "effect",
        run=ctx.run_id,
        call=ctx.tool_call_pk,
        key=ctx.idempotency_key,
        effect=effect.value,
        attempt=ctx.attempt,
        epoch=ctx.epoch,
        output=f"{name} {n}: {digest(name, n)}",
    )
    time.sleep(float(ctx.settings.get("busy_s", 0)))
    if answer["fate"] == "refused":
        raise OutcomeUnknown("somebody has declared this call void")
    return str(answer["output"])


@tool(effect=Effect.READ, timeout_s=120)
def look_up(ctx: ToolContext, n: int) -> str:
    """Looks something up."""
    return act(ctx, "look_up", Effect.READ, n)


@tool(effect=Effect.IDEMPOTENT, timeout_s=120)
def place_order(ctx: ToolContext, n: int) -> str:
    """Orders something; the same key is the same order."""
    return act(ctx, "place_order", Effect.IDEMPOTENT, n)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=120)
def pay(ctx: ToolContext, n: int) -> str:
    """Pays; nobody can take it back."""
    return act(ctx, "pay", Effect.AT_MOST_ONCE, n)


@tool(effect=Effect.READ, timeout_s=120)
def explode(ctx: ToolContext) -> str:
    """Ends the process that runs it, as a fault in a library would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


for each in (look_up, place_order, pay, explode):
    TOOLS.register(each)
