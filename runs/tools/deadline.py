"""Waiting no longer than allowed for a call that cannot be interrupted.
May import libraries and `runs.tools.base`."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from runs.tools.base import Arguments, Tool, ToolContext, ToolFailed, ToolResult

T = TypeVar("T")


class TimeIsUp(Exception):
    """The call goes on in its own thread; whatever it comes to is dropped."""


@dataclass(frozen=True)
class _Returned(Generic[T]):
    value: T


def run_with_deadline(tool: Tool, ctx: ToolContext, arguments: Arguments) -> ToolResult:
    """Run the tool for at most its `timeout_s`. Nobody can end a thread from outside: one that overstays is
    left behind, its `ctx.cancelled()` becomes true, and its late result is dropped."""
    if tool.inline:
        return tool.run(ctx, arguments)
    abandoned = threading.Event()
    watched = replace(ctx, cancelled=lambda: abandoned.is_set() or ctx.cancelled())
    try:
        return within(tool.timeout_s, lambda: tool.run(watched, arguments), name=f"tool-{tool.name}")
    except TimeIsUp:
        text = f"{tool.name!r} did not answer within {tool.timeout_s:g} s"
        raise ToolFailed("timeout", text, retryable=True) from None
    finally:
        abandoned.set()


def within(seconds: float | None, function: Callable[[], T], *, name: str) -> T:
    """What the function returns or raises, or TimeIsUp. A fresh daemon thread, as hung calls would fill a pool."""
    answer: SimpleQueue[_Returned[T] | BaseException] = SimpleQueue()

    def work() -> None:
        try:
            answer.put(_Returned(function()))
        except BaseException as error:
            answer.put(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
    try:
        result = answer.get(timeout=seconds)
    except Empty:
        raise TimeIsUp from None
    if isinstance(result, _Returned):
        return result.value
    raise result
