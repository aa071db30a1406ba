"""A durable function without a framework, with all kinds of steps."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agentops.durable import Answer, Call, DurableRun, Usage, durable
from tests.chaos.programs import interface
from tests.chaos.programs.interface import CONFIRM, MODEL, TOOLS, TRIP, VISA, Turn


async def ask_model(trip: str, number: int, results: dict[str, str]) -> Answer:
    turn = await interface.answer(trip, number, results)
    calls = [
        Call(
            id=asked.call_id(number),
            name=asked.name,
            arguments=asked.arguments,
            effect=TOOLS[asked.name].effect,
            needs_approval=TOOLS[asked.name].needs_approval,
        )
        for asked in turn.calls
        if not asked.is_wait
    ]
    waits = [asked.name for asked in turn.calls if asked.is_wait]
    usage = Usage(input_tokens=10 * number, output_tokens=5)
    return Answer(text=turn.text, calls=calls, usage=usage, raw={"waits": waits, "is_last": turn == Turn(turn.text)})


async def converse(run: DurableRun, prompt: str) -> str:
    trip, results = interface.trip_of(prompt), {}
    number = 1
    while True:
        answer = await run.model(MODEL, ask_model, trip, number, results)
        values = await asyncio.gather(*(run.tool(call, TOOLS[call.name].function) for call in answer.calls))
        results |= {call.name: value for call, value in zip(answer.calls, values, strict=True)}
        for wait in answer.raw["waits"]:
            results[wait] = await wait_for(run, trip, wait)
        if answer.raw["is_last"]:
            return answer.text
        number += 1


async def wait_for(run: DurableRun, trip: str, wait: str) -> str:
    match wait:
        case interface.ASK:
            return await run.ask(interface.QUESTION, interface.CHOICES)
        case interface.CHECK_VISA:
            return str((await run.child(VISA, interface.child_prompt(trip))).result)
        case interface.CONFIRM:
            return "yes" if await run.approve(CONFIRM, {"trip": trip}) else "no"
        case interface.REST:
            await run.sleep(interface.REST_S)
            return "rested"
    return json.dumps(await run.wait_for(interface.SIGNAL))


@durable(TRIP)
async def trip(run: DurableRun, prompt: str) -> str:
    return await converse(run, prompt)


@durable(VISA)
async def visa(run: DurableRun, prompt: str) -> str:
    return await converse(run, prompt)


def served() -> list[Any]:
    return [trip, visa]
