"""Whether tools that make changes are enabled: a setting allows them, and this machine can confine commands."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from functools import cache

from django.conf import settings

from runs.tools.base import Tool, ToolDenied
from runs.tools.sandbox import sandboxed_command

SHELL, WRITE = "AGENTOPS_SHELL_TOOL", "AGENTOPS_WRITE_TOOLS"


class ToolOff(ValueError):
    """An agent names a tool that the site does not allow."""


def why_off(tool: Tool) -> str:
    """Return why a tool is disabled in this process, as a sentence; empty if it is enabled."""
    if not tool.switch:
        return ""
    if not getattr(settings, tool.switch):
        return f"{tool.switch} is not set."
    return why_unavailable() if tool.switch == SHELL else ""


def check(tools: Iterable[Tool]) -> None:
    """Check the settings of tools. Raises `ToolOff` for the first tool whose setting is off."""
    for tool in tools:
        if tool.switch and not getattr(settings, tool.switch):
            raise ToolOff(f"The tool {tool.name!r} is off: {tool.switch} is not set.")


def require(switch: str) -> None:
    """Check a setting again, which may have changed since the run was created. Raises `ToolDenied` if it is off."""
    if not getattr(settings, switch):
        raise ToolDenied("tool_off", f"Nothing was done: {switch} is not set.")


# --- Whether commands can be confined ---

#: A user without rights, for the trial of a worker that runs as root.
NOBODY = 65_534


@cache
def why_unavailable() -> str:
    """Return why commands cannot run in a sandbox here, as a sentence; empty if they can. Tried once per process."""
    with tempfile.TemporaryDirectory(prefix="agentops-trial-") as root:
        if os.geteuid() == 0:
            os.chown(root, NOBODY, NOBODY)
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            result = sandboxed_command.run(
                ["/bin/sh", "-c", ":"], root_fd, timeout_s=30, write=lambda *_: None, cancelled=lambda: False
            )
        except sandboxed_command.NoSandbox as error:
            return f"{error.reason[:1].upper()}{error.reason[1:]}."
        finally:
            os.close(root_fd)
    return f"A command that does nothing failed: {result.output or result.reason}." if result.code else ""
