"""Runs the coroutine of an async tool on the tool's own thread.

It gets an event loop of its own. On the loop of the model calls, a tool that blocks would block all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from runs.tools.base import OutcomeUnknown

#: Seconds between two looks whether the result is still needed.
LOOK_S = 0.1


def run(coroutine: Coroutine[Any, Any, object], cancelled: Callable[[], bool]) -> object:
    """Return the result of a coroutine, and cancel it when `cancelled` returns True. Raises `OutcomeUnknown` then."""
    return asyncio.run(_watched(coroutine, cancelled))


async def _watched(coroutine: Coroutine[Any, Any, object], cancelled: Callable[[], bool]) -> object:
    task, is_cancelled = asyncio.ensure_future(coroutine), False
    while not task.done():
        await asyncio.wait([task], timeout=LOOK_S)
        if not task.done() and not is_cancelled and cancelled():
            # Once: its clean-up may take a while.
            is_cancelled = task.cancel()
    if is_cancelled and task.cancelled():
        raise OutcomeUnknown
    return task.result()
