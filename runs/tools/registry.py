"""The registry of tools, which resolves the tool names of an agent's definition."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.tools import ToolDefinition

from runs import extensions
from runs.extensions import BUILT_IN, ExtensionFailed
from runs.tools.base import RemoteToolset, Tool, Toolset

#: The name of the toolset that answers calls of any tool from a fixture.
RECORDED = "recorded"

#: Function names that all providers accept.
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: Creates a toolset from an agent's settings.
ToolsetFactory = Callable[[Mapping[str, Any]], Toolset]

#: Creates one toolset of a family from its full name, such as `mcp:time`, and an agent's settings.
FamilyFactory = Callable[[str, Mapping[str, Any]], RemoteToolset]

#: Yields added tools, each with its source. Adds unusable extensions to the list.
Loader = Callable[[list[ExtensionFailed]], Iterable[tuple[Tool, str]]]


class UnknownTool(LookupError):
    """An agent's definition names tools that are not registered."""

    def __init__(self, names: Sequence[str], known_names: Iterable[str], faults: int = 0) -> None:
        self.names = tuple(names)
        wrong = ", ".join(map(repr, names))
        left_out = f" Extensions that cannot be used: {faults}; see `agentops tools`." if faults else ""
        known = ", ".join(sorted(known_names)) or "none"
        super().__init__(f"Unknown tools: {wrong}. Registered are: {known}.{left_out}")


class DuplicateTool(ValueError):
    """A tool of this name is registered already."""

    def __init__(self, name: str, source: str = "") -> None:
        self.name = name
        super().__init__(f"There is already a tool named {name!r}{source and f' ({source})'}.")


@dataclass(frozen=True)
class RegisteredTool:
    """A tool and its source."""

    tool: Tool
    source: str = BUILT_IN


class Registry:
    """Tools and toolsets by name. Added tools are loaded when the registry is read for the first time."""

    def __init__(self, tools: Iterable[Tool] = (), load: Loader | None = None) -> None:
        self._tools: dict[str, RegisteredTool] = {}
        self._factories: dict[str, ToolsetFactory] = {}
        self._families: dict[str, FamilyFactory] = {}
        self._load = load
        # Reentrant, because a module that is loaded may read the registry.
        self._loading = threading.RLock()
        self._faults: list[ExtensionFailed] = []
        for each in tools:
            self.register(each)

    def register(self, tool: Tool, source: str = BUILT_IN) -> None:
        """Add a tool. Raises `DuplicateTool`, or ValueError for an invalid name."""
        self._refuse_duplicate(tool.name)
        if not NAME.fullmatch(tool.name) or tool.name == RECORDED:
            rule = f"1 to 64 of A-Z a-z 0-9 _ -, and not {RECORDED!r}"
            raise ValueError(f"A tool cannot be named {tool.name!r}: {rule}.")
        self._tools[tool.name] = RegisteredTool(tool, source)

    def register_toolset(self, name: str, factory: ToolsetFactory) -> None:
        """Add a toolset, such as `recorded` or an MCP server. It is created for each agent from its settings."""
        self._refuse_duplicate(name)
        self._factories[name] = factory

    def register_family(self, prefix: str, factory: FamilyFactory) -> None:
        """Add toolsets whose names begin with `prefix`. Creating one must not connect to anything."""
        self._families[prefix] = factory

    def names(self) -> list[str]:
        """Return the sorted names of all tools and toolsets, without families."""
        return sorted([*self._all(), *self._factories])

    def tool(self, name: str) -> Tool | None:
        """Return the tool of this name, or None. Tools of toolsets are not included."""
        registered = self._tools.get(name) or self._all().get(name)
        return None if registered is None else registered.tool

    def registered(self) -> list[RegisteredTool]:
        """Return all tools, sorted by name. Tools of toolsets are not included."""
        return [registered for _, registered in sorted(self._all().items())]

    def faults(self) -> list[ExtensionFailed]:
        """Return the unusable extensions, with the reasons."""
        self._all()
        return list(self._faults)

    def resolve(
        self, names: Sequence[str], settings: Mapping[str, Any], more: Sequence[RemoteToolset] = ()
    ) -> AgentTools:
        """Return the toolset of an agent that lists `names`. Adds tools of `more` whose names are new.

        Raises `UnknownTool`, `DuplicateTool` or ValueError.
        """
        unique_names = list(dict.fromkeys(names))
        tools = {name: tool for name in unique_names if (tool := self.tool(name)) is not None}
        families = {name: family for name in unique_names if (family := self._family(name)) is not None}
        unknown = [name for name in unique_names if name not in {**tools, **self._factories, **families}]
        if unknown:
            raise UnknownTool(unknown, self.names(), len(self._faults))
        toolsets = [self._factories[name](settings) for name in unique_names if name in self._factories]
        remote = [make(name, settings) for name, make in families.items()]
        return AgentTools(tools, toolsets, [*remote, *more])

    def _family(self, name: str) -> FamilyFactory | None:
        return next((make for prefix, make in self._families.items() if name.startswith(prefix)), None)

    def _all(self) -> dict[str, RegisteredTool]:
        """Return the tools, after loading the added ones."""
        with self._loading:
            load, self._load = self._load, None
            for tool, source in load(self._faults) if load is not None else ():
                try:
                    self.register(tool, source)
                except ValueError as error:
                    extensions.note(ExtensionFailed(source, str(error)), self._faults)
            return self._tools

    def _refuse_duplicate(self, name: str) -> None:
        if name in self._tools or name in self._factories:
            raise DuplicateTool(name, self._tools[name].source if name in self._tools else "toolset")


class AgentTools:
    """The tools of one agent, in order of precedence: named tools, tools of its toolsets, tools of servers."""

    def __init__(
        self, tools: Mapping[str, Tool], toolsets: Sequence[Toolset], remote: Sequence[RemoteToolset] = ()
    ) -> None:
        self._tools = tools
        self._toolsets = toolsets
        # Queried only when their tools are needed; until then they have no connection.
        self._remote = remote
        names = set(tools)
        for definition in (each for toolset in toolsets for each in toolset.definitions()):
            if definition.name in names:
                raise DuplicateTool(definition.name)
            names.add(definition.name)

    def get(self, name: str) -> Tool | None:
        if name in self._tools:
            return self._tools[name]
        matches = (toolset.get(name) for toolset in [*self._toolsets, *self._remote])
        return next((tool for tool in matches if tool is not None), None)

    def definitions(self) -> list[ToolDefinition]:
        definitions = [tool.definition for tool in self._tools.values()]
        definitions += [each for toolset in [*self._toolsets, *self._remote] for each in toolset.definitions()]
        # If a server's tool has the name of another tool, the first one counts, as in `get`.
        return list({each.name: each for each in reversed(definitions)}.values())[::-1]

    def open(self) -> None:
        """Request the lists of tools from servers. Raises ValueError if a server cannot be reached."""
        for toolset in self._remote:
            toolset.open()

    def close(self) -> None:
        """Close the connections to servers."""
        for toolset in self._remote:
            toolset.close()
