"""The limits of an agent's tool calls: the time of a call, and the number of calls that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from agentops.base.http.deadline import MAX_OVERDUE, DeadlineExceeded, NotStarted, TimedCall, TrackedCall, too_many
from runs.tools.base import Arguments, Tool, ToolContext, ToolFailed, ToolResult

#: Called every 0.25 s during a wait. An exception that it raises ends the wait.
Watch = Callable[[], None]
#: Gets the result of a tool that ended after its time limit, on the tool's thread or on the waiting one.
Late = Callable[[ToolResult], None]


class StartedTool:
    """A tool that runs in a separate thread, for at most its `timeout_s` seconds.

    Threads cannot be killed. A tool that exceeds the limit keeps running, but its `ctx.cancelled()` returns True. While
    `MAX_OVERDUE` such calls of a tool are running in this process, further calls of the tool fail.
    """

    def __init__(self, tool: Tool, ctx: ToolContext, arguments: Arguments) -> None:
        self._tool = tool
        self._abandoned = threading.Event()
        self._overdue = TrackedCall((StartedTool, tool.name))
        watched = replace(ctx, cancelled=lambda: self._abandoned.is_set() or ctx.cancelled())
        self._call = TimedCall(tool.timeout_s, partial(self._run, watched, arguments), name=f"tool-{tool.name}")

    def wait(self, watch: Watch | None = None, late: Late | None = None) -> ToolResult:
        """Wait for the result, and return it.

        Raises the errors of the tool, and `ToolFailed` with the type "timeout" or, if no thread could be started,
        "no_thread".
        """
        try:
            return self._call.wait(watch, late)
        except DeadlineExceeded:
            self._overdue.give_up()
            text = f"{self._tool.name!r} did not answer within {self._tool.timeout_s:g} s"
            raise ToolFailed("timeout", text, retryable=True) from None
        except NotStarted as error:
            raise ToolFailed("no_thread", f"not run: {error}", retryable=True) from None
        finally:
            self._abandoned.set()

    def _run(self, ctx: ToolContext, arguments: Arguments) -> ToolResult:
        try:
            if too_many((StartedTool, self._tool.name)):
                text = f"not run: {MAX_OVERDUE} earlier calls of {self._tool.name!r} exceeded their time and still run"
                raise ToolFailed("too_many_timeouts", text)
            return self._tool.run(ctx, arguments)
        finally:
            self._overdue.end()

    def abandon(self) -> None:
        """Signal to the tool that it should end."""
        self._abandoned.set()
        self._call.abandon()

    def elapsed_s(self) -> float:
        """Return how many seconds the tool has run so far, or in total once it has ended."""
        return self._call.elapsed_s()


def run_with_deadline(
    tool: Tool, ctx: ToolContext, arguments: Arguments, watch: Watch | None = None, late: Late | None = None
) -> ToolResult:
    """Run a tool and wait for its result: see `StartedTool.wait`. An inline tool runs on the current thread."""
    return tool.run(ctx, arguments) if tool.inline else StartedTool(tool, ctx, arguments).wait(watch, late)


#: Default of `parallel_tools` in an agent's settings.
DEFAULT_PARALLEL = 8
MAX_PARALLEL = 64


class InvalidParallel(ValueError):
    """`parallel_tools` of an agent's settings is invalid."""


def parallel_limit(settings: Mapping[str, Any]) -> int:
    """Return how many tool calls of a run may run at the same time. Raises `InvalidParallel`."""
    value = settings.get("parallel_tools", DEFAULT_PARALLEL)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PARALLEL:
        allowed = f"a whole number from 1 to {MAX_PARALLEL}"
        raise InvalidParallel(f"settings.parallel_tools must be {allowed}, not {str(value)[:64]!r}")
    return value
