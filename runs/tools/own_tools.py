"""Tools added by other packages and by modules of this deployment."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from django.conf import settings

from runs import extensions
from runs.extensions import ExtensionFailed
from runs.tools.base import Tool

SETTING = "AGENTOPS_TOOL_MODULES"


def load(faults: list[ExtensionFailed]) -> Iterator[tuple[Tool, str]]:
    """Yield each tool with its source. Extensions without tools are added to `faults`."""
    candidates = extensions.installed(extensions.TOOLS, settings.AGENTOPS_TOOL_MODULES, SETTING)
    for extension, value in extensions.load_each(candidates, faults):
        tools = _tools_of(value)
        if not tools:
            extensions.note(ExtensionFailed(extension.source, _reason(value)), faults)
        yield from ((tool, extension.source) for tool in tools)


def _tools_of(value: object) -> list[Tool]:
    """Return a tool, or the public tools of a module in the order of their definition."""
    if isinstance(value, Tool):
        return [value]
    if not isinstance(value, ModuleType):
        return []
    return [member for member in extensions.public(value) if isinstance(member, Tool)]


def _reason(value: object) -> str:
    if isinstance(value, ModuleType):
        return "contains no tools; decorate a function with @tool"
    kind = "a function that is not decorated with @tool" if callable(value) else f"a {type(value).__name__}"
    return f"names {kind}; expected a tool, or a module with tools"
