"""The registry of all tools. It finds the tools that an agent's definition names.

Tools are built in, recorded in fixtures, offered by MCP servers, or added by extensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from django.utils.module_loading import import_string
from pydantic_ai.tools import ToolDefinition

from agentops.base.catalogue import Catalogue, CatalogueEntry, Extension, ExtensionFailed, members_of, ready
from runs.tools import mcp_toolset
from runs.tools.agent_tools import AGENT_TOOLS, CONVERSATION_TOOLS
from runs.tools.base import RemoteToolset, Tool, Toolset
from runs.tools.builtin import BUILTIN
from runs.tools.sandbox.shell import SHELL
from runs.tools.sandbox.write_tools import WRITE_TOOLS

#: The name of the toolset that answers calls of any tool from a fixture.
RECORDED = "recorded"

#: Function names that all providers accept.
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: Creates a toolset from an agent's settings.
ToolsetFactory = Callable[[Mapping[str, Any]], Toolset]

#: Creates a toolset of a family from its full name, such as `mcp:time`, and an agent's settings.
FamilyFactory = Callable[[str, Mapping[str, Any]], RemoteToolset]


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


class Registry(Catalogue[Tool]):
    """Tools, toolsets, and families of toolsets, by name."""

    kind = "tool"
    group = "agentops.tools"
    setting = "AGENTOPS_TOOL_MODULES"

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._factories: dict[str, ToolsetFactory] = {}
        self._families: dict[str, FamilyFactory] = {}
        super().__init__({})
        for each in tools:
            self.register(each)

    def register(self, tool: Tool) -> None:
        """Add a built-in tool. Raises `DuplicateTool`, or ValueError for an invalid name."""
        self.add(tool.name, ready(tool))

    def register_toolset(self, name: str, factory: ToolsetFactory) -> None:
        """Add a toolset, such as `recorded`. `factory` creates it for each agent. Raises `DuplicateTool`."""
        self._refuse_duplicate(name)
        self._factories[name] = factory

    def register_family(self, prefix: str, factory: FamilyFactory) -> None:
        """Add a family: the toolsets whose names begin with `prefix`. `factory` must not connect to anything."""
        self._families[prefix] = factory

    def candidates(self, extension: Extension, value: object) -> Iterable[Tool]:
        """Return the tool that an extension names, or the public tools of a module in the order of their definition."""
        tools = [member for member in members_of(value) if isinstance(member, Tool)]
        if not tools:
            raise ExtensionFailed(extension.source, _why_none(value))
        return tools

    def make(self, extension: Extension, candidate: Tool) -> tuple[str, Tool]:
        return candidate.name, candidate

    def check_name(self, name: str) -> None:
        self._refuse_duplicate(name)
        if not NAME.fullmatch(name) or name == RECORDED:
            rule = f"1 to 64 of A-Z a-z 0-9 _ -, and not {RECORDED!r}"
            raise ValueError(f"A tool cannot be named {name!r}: {rule}.")

    def describe(self, entry: CatalogueEntry[Tool]) -> str:
        return entry.part.description or ""

    def names(self) -> list[str]:
        """Return the sorted names of all tools and toolsets, without families."""
        return sorted([*self.all(), *self._factories])

    def resolve(
        self, names: Sequence[str], settings: Mapping[str, Any], more: Sequence[RemoteToolset] = ()
    ) -> AgentTools:
        """Return the tools of an agent whose definition lists `names`, and after them the tools of `more`.

        Raises `UnknownTool` or `DuplicateTool`, and the `ValueError` of a factory.
        """
        unique_names = list(dict.fromkeys(names))
        tools = {name: tool for name in unique_names if (tool := self.get(name)) is not None}
        families = {
            name: factory
            for name in unique_names
            for prefix, factory in self._families.items()
            if name.startswith(prefix)
        }
        unknown = [name for name in unique_names if name not in {**tools, **self._factories, **families}]
        if unknown:
            raise UnknownTool(unknown, self.names(), len(self.faults()))
        toolsets = [self._factories[name](settings) for name in unique_names if name in self._factories]
        remote = [factory(name, settings) for name, factory in families.items()]
        return AgentTools(tools, toolsets, [*remote, *more])

    def _refuse_duplicate(self, name: str) -> None:
        if name in self._factories:
            raise DuplicateTool(name, "toolset")
        if (entry := self._added.get(name) or self._built_in.get(name)) is not None:
            raise DuplicateTool(name, entry.source)


class AgentTools:
    """The tools of one agent, in order of precedence: named tools, tools of its toolsets, tools of servers.

    Raises `DuplicateTool` if named tools and toolsets share a name.
    """

    def __init__(
        self, tools: Mapping[str, Tool], toolsets: Sequence[Toolset], remote: Sequence[RemoteToolset] = ()
    ) -> None:
        self._tools = tools
        self._toolsets = toolsets
        # Not checked for duplicates here, because listing their tools needs a connection.
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
        # Of several tools with one name, the first counts, as in `get`.
        return list({each.name: each for each in reversed(definitions)}.values())[::-1]

    def open(self) -> None:
        """Request the lists of tools from servers. Raises ValueError if a server cannot be reached."""
        for toolset in self._remote:
            toolset.open()

    def close(self) -> None:
        """Close the connections to servers."""
        for toolset in self._remote:
            toolset.close()


def _why_none(value: object) -> str:
    """Return why an extension that names `value` has no tools."""
    if isinstance(value, ModuleType):
        return "contains no tools; decorate a function with @tool"
    kind = "a function that is not decorated with @tool" if callable(value) else f"a {type(value).__name__}"
    return f"names {kind}; expected a tool, or a module with tools"


def _recorded(settings: Mapping[str, Any]) -> Toolset:
    """Return the toolset of a fixture. It is imported by name, because runs.tools must not depend on runs.fixtures."""
    toolset: Toolset = import_string("runs.fixtures.playback.for_agent")(settings)
    return toolset


TOOLS = Registry([*BUILTIN, *CONVERSATION_TOOLS, *AGENT_TOOLS, SHELL, *WRITE_TOOLS])
TOOLS.register_toolset(RECORDED, _recorded)
TOOLS.register_family(mcp_toolset.PREFIX, mcp_toolset.for_agent)
