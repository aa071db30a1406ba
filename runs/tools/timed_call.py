"""Runs a tool within its time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from agentops.base.http.deadline import MAX_OVERDUE, DeadlineExceeded, NotStarted, OverdueCall, TimedCall, too_many
from runs.tools.base import Arguments, Tool, ToolContext, ToolFailed, ToolResult

Watch = Callable[[], None]
Late = Callable[[ToolResult], None]


class StartedTool:
    """A tool that runs in a separate thread, for at most its `timeout_s` seconds.

    Threads cannot be killed: a tool that exceeds the limit keeps running, and its `ctx.cancelled()` returns True. While
    `MAX_OVERDUE` calls of the tool are overdue in this process, the tool is not called again.
    """

    def __init__(self, tool: Tool, ctx: ToolContext, arguments: Arguments) -> None:
        self._tool = tool
        self._abandoned = threading.Event()
        self._overdue = OverdueCall((StartedTool, tool.name))
        watched = replace(ctx, cancelled=lambda: self._abandoned.is_set() or ctx.cancelled())
        self._call = TimedCall(tool.timeout_s, partial(self._run, watched, arguments), name=f"tool-{tool.name}")

    def wait(self, watch: Watch | None = None, late: Late | None = None) -> ToolResult:
        """Return the result. Raises errors of the tool, and `ToolFailed` of the type "timeout" or "no_thread".

        "no_thread" means that no thread could be started. A late result is passed to `late`, on that thread or this
        one. `watch` is called every 0.25 s; an exception that it raises also ends the wait.
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
        """Signal to the tool that its result is not needed any more."""
        self._abandoned.set()
        self._call.abandon()

    def elapsed_s(self) -> float:
        """Return the seconds that the tool has run so far, or took."""
        return self._call.elapsed_s()


def run_with_deadline(
    tool: Tool, ctx: ToolContext, arguments: Arguments, watch: Watch | None = None, late: Late | None = None
) -> ToolResult:
    """Run a tool and wait for its result: see `StartedTool.wait`. An inline tool runs on the current thread."""
    return tool.run(ctx, arguments) if tool.inline else StartedTool(tool, ctx, arguments).wait(watch, late)
