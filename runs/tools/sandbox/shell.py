"""The tool `shell`: a command in the agent's root, in a sandbox."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from runs.tools import roots
from runs.tools.base import Effect, ToolContext, ToolDenied, ToolResult
from runs.tools.functions import tool
from runs.tools.rooted_files import open_below_root
from runs.tools.sandbox import sandboxed_command, switches
from runs.tools.sandbox.work_tree import WorkTree

MAX_COMMAND = 64 * 1024
MAX_TIMEOUT_S = 1800
#: Seconds for start and end, in addition to the command's time limit.
MARGIN_S = 30


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=MAX_TIMEOUT_S + MARGIN_S)
def shell(
    ctx: ToolContext,
    command: Annotated[str, Field(min_length=1, max_length=MAX_COMMAND)],
    timeout_s: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_S)] = 120,
) -> ToolResult:
    """Run a command with sh in the agent's root. There is no network, and only the root and /tmp can be changed.

    /tmp is empty when a command begins, and what is in it is deleted afterwards. Processes that the command leaves in
    the background are ended with it.

    Args:
        command: What to run; several lines are allowed.
        timeout_s: Seconds after which it is ended.
    """
    switches.require(switches.SHELL)
    if "\0" in command:
        raise ToolDenied("command_denied", "Nothing was run: the command contains a NUL character.")
    if roots.contains_site(ctx.settings.get("root")):
        raise ToolDenied("path_denied", "Nothing was run: the agent's root contains files of this site.")
    if roots.contains_kernel_mount(ctx.settings.get("root")):
        raise ToolDenied("path_denied", "Nothing was run: /proc or the like is mounted below the agent's root.")
    with open_below_root(ctx.settings.get("root"), ".", directory=True) as root_fd:
        before = WorkTree.of(root_fd)
        ended = sandboxed_command.run(
            ["/bin/sh", "-c", command], root_fd, timeout_s=timeout_s, write=ctx.write, cancelled=ctx.cancelled
        )
        events = WorkTree.of(root_fd).changes_since(before)
    return ToolResult(_text(ended), is_error=bool(ended.reason) or ended.code != 0, retryable=False, events=events)


SHELL = replace(shell, reads_files=True, switch=switches.SHELL)


def _text(ended: sandboxed_command.Ended) -> str:
    how = f"ended because {ended.reason}" if ended.reason else f"exit {ended.code}"
    cut = ", output truncated" if ended.is_truncated else ""
    return f"{ended.output.rstrip(os.linesep)}\n[{how}{cut}]".lstrip("\n")
