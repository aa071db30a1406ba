"""The settings of the site without which tools that change things are off."""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings

from runs.tools.base import Tool, ToolDenied
from runs.tools.sandbox import availability

SHELL, WRITE = "AGENTOPS_SHELL_TOOL", "AGENTOPS_WRITE_TOOLS"


class ToolOff(ValueError):
    """An agent names a tool that the site does not allow."""


def why_off(tool: Tool) -> str:
    """Return why a tool runs nothing in this process, as a sentence; empty if it runs."""
    if not tool.switch:
        return ""
    if not getattr(settings, tool.switch):
        return f"{tool.switch} is not set."
    return availability.why_unavailable() if tool.switch == SHELL else ""


def check(tools: Iterable[Tool]) -> None:
    """Raise `ToolOff` for the first tool whose setting is off."""
    for tool in tools:
        if tool.switch and not getattr(settings, tool.switch):
            raise ToolOff(f"The tool {tool.name!r} is off: {tool.switch} is not set.")


def require(switch: str) -> None:
    """Raise `ToolDenied` if the setting is off: it may have been switched off since the run was created."""
    if not getattr(settings, switch):
        raise ToolDenied("tool_off", f"Nothing was done: {switch} is not set.")
