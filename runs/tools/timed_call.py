"""Runs a tool within its time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from agentops.http.deadline import DeadlineExceeded, call_within
from runs.tools.base import Arguments, Tool, ToolContext, ToolFailed, ToolResult


def run_with_deadline(
    tool: Tool,
    ctx: ToolContext,
    arguments: Arguments,
    watch: Callable[[], None] | None = None,
    late: Callable[[ToolResult], None] | None = None,
) -> ToolResult:
    """Run a tool for at most its `timeout_s` seconds. Raises `ToolFailed` of the type "timeout".

    Threads cannot be killed: a tool that exceeds the limit keeps running, its `ctx.cancelled()` returns True, and its
    result is passed to `late`, on that thread or this one. `watch` is called every 0.25 s. If it raises, waiting ends
    in the same way.
    """
    if tool.inline:
        return tool.run(ctx, arguments)
    abandoned = threading.Event()
    watched = replace(ctx, cancelled=lambda: abandoned.is_set() or ctx.cancelled())
    try:
        return call_within(
            tool.timeout_s, lambda: tool.run(watched, arguments), name=f"tool-{tool.name}", watch=watch, late=late
        )
    except DeadlineExceeded:
        text = f"{tool.name!r} did not answer within {tool.timeout_s:g} s"
        raise ToolFailed("timeout", text, retryable=True) from None
    finally:
        abandoned.set()
