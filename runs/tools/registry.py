"""The registry of tools, which resolves the tool names of an agent's definition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic_ai.tools import ToolDefinition

from runs.tools.base import Tool, Toolset

#: The name of the toolset that answers calls of any tool from a fixture.
RECORDED = "recorded"

#: Function names that all providers accept.
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: Creates a toolset from an agent's settings.
ToolsetFactory = Callable[[Mapping[str, Any]], Toolset]


class UnknownTool(LookupError):
    """An agent's definition names tools that are not registered."""

    def __init__(self, names: Sequence[str], known_names: Iterable[str]) -> None:
        self.names = tuple(names)
        wrong = ", ".join(map(repr, names))
        super().__init__(f"Unknown tools: {wrong}. Registered are: {', '.join(sorted(known_names)) or 'none'}.")


class DuplicateTool(ValueError):
    """A tool of this name is registered already."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"There is already a tool named {name!r}.")


class Registry:
    """Tools and toolsets by name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._factories: dict[str, ToolsetFactory] = {}
        for each in tools:
            self.register(each)

    def register(self, tool: Tool) -> None:
        """Add a tool. Raises `DuplicateTool`, or ValueError for an invalid name."""
        self._refuse_duplicate(tool.name)
        if not NAME.fullmatch(tool.name) or tool.name == RECORDED:
            rule = f"1 to 64 of A-Z a-z 0-9 _ -, and not {RECORDED!r}"
            raise ValueError(f"A tool cannot be named {tool.name!r}: {rule}.")
        self._tools[tool.name] = tool

    def register_toolset(self, name: str, factory: ToolsetFactory) -> None:
        """Add a toolset, such as `recorded` or an MCP server. It is created for each agent from its settings."""
        self._refuse_duplicate(name)
        self._factories[name] = factory

    def names(self) -> list[str]:
        """Return the sorted names of all tools and toolsets."""
        return sorted([*self._tools, *self._factories])

    def tool(self, name: str) -> Tool | None:
        """Return the tool of this name, or None. Tools of toolsets are not included."""
        return self._tools.get(name)

    def resolve(self, names: Sequence[str], settings: Mapping[str, Any]) -> Toolset:
        """Return the toolset of an agent that lists `names`. Raises `UnknownTool` or `DuplicateTool`."""
        unique_names = list(dict.fromkeys(names))
        unknown = [name for name in unique_names if name not in self._tools and name not in self._factories]
        if unknown:
            raise UnknownTool(unknown, self.names())
        tools = {name: self._tools[name] for name in unique_names if name in self._tools}
        toolsets = [self._factories[name](settings) for name in unique_names if name in self._factories]
        return _AgentTools(tools, toolsets)

    def _refuse_duplicate(self, name: str) -> None:
        if name in self._tools or name in self._factories:
            raise DuplicateTool(name)


class _AgentTools:
    """The tools of one agent: first the ones it names, then the ones of its toolsets."""

    def __init__(self, tools: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> None:
        self._tools = tools
        self._toolsets = toolsets
        names = set(tools)
        for definition in (each for toolset in toolsets for each in toolset.definitions()):
            if definition.name in names:
                raise DuplicateTool(definition.name)
            names.add(definition.name)

    def get(self, name: str) -> Tool | None:
        if name in self._tools:
            return self._tools[name]
        matches = (toolset.get(name) for toolset in self._toolsets)
        return next((tool for tool in matches if tool is not None), None)

    def definitions(self) -> list[ToolDefinition]:
        definitions = [tool.definition for tool in self._tools.values()]
        return definitions + [each for toolset in self._toolsets for each in toolset.definitions()]
