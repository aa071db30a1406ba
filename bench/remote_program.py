"""Executes durable functions for `bench.remote` and `bench.control`.

It makes the steps of a file, whose model and tools answer at once.

Usage: python -m bench.remote_program STEPS.json RUNS, with AGENTOPS_URL and AGENTOPS_API_KEY.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agentops.durable import Answer, Call, DurableFunction, DurableRun, Usage, durable, serve_forever

#: The agents of the functions.
TURNS, PLAIN, OBEDIENT = "bench-turns", "bench-plain", "bench-obedient"
#: Seconds of a step of the obedient agent.
STEP_S = 0.05


@durable(OBEDIENT)
async def obey(run: DurableRun, prompt: str) -> str:
    """Ask for an approval if the prompt says so. Otherwise work until a message arrives, and return it."""
    if prompt == "approve":
        await run.approve("charge", {"cents": 500})
        return str(await run.step("charge", str))
    while not (received := await run.messages()):
        await run.step("work", asyncio.sleep, STEP_S, effect="read")
    return str(received[0])


def functions(turns: list[dict[str, Any]]) -> list[DurableFunction]:
    """Return a function whose steps are a model call and a tool call each, and one with plain steps."""
    usage = Usage(input_tokens=1800, output_tokens=260)

    async def ask(number: int) -> Answer:
        turn = turns[number]
        call = Call(id=turn["call_id"], name=turn["tool"], arguments=turn["arguments"], effect="read")
        return Answer(text=turn["text"], calls=[call], usage=usage, finish_reason="tool_call")

    @durable(TURNS, max_steps=len(turns) + 1)
    async def converse(run: DurableRun, prompt: str) -> int:
        for number, turn in enumerate(turns):
            answer = await run.model("bench-model", ask, number)

            async def read_file(output: str = turn["output"], **_: Any) -> str:
                return output

            await run.tool(answer.calls[0], read_file)
        return len(turns)

    @durable(PLAIN, max_steps=len(turns) + 1)
    async def call_plainly(run: DurableRun, prompt: str) -> int:
        for turn in turns:

            async def read_file(output: str = turn["output"], **_: Any) -> str:
                return output

            await run.step("read_file", read_file, effect="read", **turn["arguments"])
        return len(turns)

    return [converse, call_plainly]


if __name__ == "__main__":
    path, runs = sys.argv[1:]
    serve_forever(obey, *functions(json.loads(Path(path).read_text())), concurrency=int(runs))
