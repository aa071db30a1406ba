"""The closed list of tools that an agent may name, and what one agent gets of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic_ai.tools import ToolDefinition

from runs.tools.base import Tool, Toolset

#: The name that stands for the toolset answering any tool name from a fixture.
RECORDED = "recorded"

#: What every provider accepts as a function name.
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: Makes a toolset from the agent's settings.
ToolsetMaker = Callable[[Mapping[str, Any]], Toolset]


class UnknownTool(LookupError):
    """An agent names tools that nobody registered."""

    def __init__(self, names: Sequence[str], known: Iterable[str]) -> None:
        self.names = tuple(names)
        wrong = ", ".join(map(repr, names))
        super().__init__(f"Unknown tools: {wrong}. Registered are: {', '.join(sorted(known)) or 'none'}.")


class DuplicateTool(ValueError):
    """Two tools of one name: the model could not tell which it asks for."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"There is already a tool named {name!r}.")


class Registry:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._makers: dict[str, ToolsetMaker] = {}
        for each in tools:
            self.register(each)

    def register(self, tool: Tool) -> None:
        self._refuse_known(tool.name)
        if not NAME.fullmatch(tool.name) or tool.name == RECORDED:
            rule = f"1 to 64 of A-Z a-z 0-9 _ -, and not {RECORDED!r}"
            raise ValueError(f"A tool cannot be named {tool.name!r}: {rule}.")
        self._tools[tool.name] = tool

    def register_toolset(self, name: str, make: ToolsetMaker) -> None:
        """A name that brings many tools, made for each agent from its settings: `recorded`, an MCP server."""
        self._refuse_known(name)
        self._makers[name] = make

    def names(self) -> list[str]:
        return sorted([*self._tools, *self._makers])

    def tool(self, name: str) -> Tool | None:
        """One tool by itself; those of a toolset belong to an agent."""
        return self._tools.get(name)

    def resolve(self, names: Sequence[str], settings: Mapping[str, Any]) -> Toolset:
        wanted = list(dict.fromkeys(names))
        unknown = [name for name in wanted if name not in self._tools and name not in self._makers]
        if unknown:
            raise UnknownTool(unknown, self.names())
        tools = {name: self._tools[name] for name in wanted if name in self._tools}
        toolsets = [self._makers[name](settings) for name in wanted if name in self._makers]
        return _Chosen(tools, toolsets)

    def _refuse_known(self, name: str) -> None:
        if name in self._tools or name in self._makers:
            raise DuplicateTool(name)


class _Chosen:
    """One agent's tools: those it names come first, then whatever its toolsets answer to."""

    def __init__(self, tools: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> None:
        self._tools = tools
        self._toolsets = toolsets
        seen = set(tools)
        for definition in (each for toolset in toolsets for each in toolset.definitions()):
            if definition.name in seen:
                raise DuplicateTool(definition.name)
            seen.add(definition.name)

    def get(self, name: str) -> Tool | None:
        if name in self._tools:
            return self._tools[name]
        answers = (toolset.get(name) for toolset in self._toolsets)
        return next((found for found in answers if found is not None), None)

    def definitions(self) -> list[ToolDefinition]:
        named = [tool.definition for tool in self._tools.values()]
        return named + [each for toolset in self._toolsets for each in toolset.definitions()]
