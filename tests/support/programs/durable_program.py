"""A program with durable functions, for tests that kill it: durable_program.py DIRECTORY.

Each execution of a step adds a line to `ledger` in the directory. The second step waits until the file `go` exists.
AGENTOPS_URL and AGENTOPS_API_KEY name the site.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from agentops.durable import DurableRun, durable, serve_forever

DIRECTORY = Path(sys.argv[1])


def note(word: str) -> str:
    with (DIRECTORY / "ledger").open("a") as ledger:
        ledger.write(f"{word} {os.getpid()}\n")
    return word


async def wait(word: str) -> str:
    note(word)
    while not (DIRECTORY / "go").exists():
        await asyncio.sleep(0.02)
    return f"{word} by {os.getpid()}"


async def block(word: str) -> str:
    """Wait without a turn of the event loop, as an asynchronous function with a synchronous client does."""
    note(word)
    while not (DIRECTORY / "go").exists():
        time.sleep(0.02)
    return f"{word} by {os.getpid()}"


@durable("blocking")
async def blocking(run: DurableRun, prompt: str) -> str:
    return str(await run.step("second", block, "second"))


@durable("ledger", max_steps=1_000)
async def ledger(run: DurableRun, prompt: str) -> list[Any]:
    """Execute three steps. The prompt is the effect of the second one."""
    return [
        await run.step("first", note, "first"),
        await run.step("second", wait, "second", effect=prompt),
        await run.step("third", note, "third"),
    ]


if __name__ == "__main__":
    logging.basicConfig(level="INFO", stream=sys.stderr)
    serve_forever(ledger, blocking, poll_s=0.2, grace_s=float(os.environ.get("GRACE_S", "20")))
