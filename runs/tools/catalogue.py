"""The registry of all tools: built-in, for people and agents, recorded, of MCP servers, and of extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.module_loading import import_string

from runs.tools.agent_tools import AGENT_TOOLS
from runs.tools.base import Toolset
from runs.tools.builtin import BUILTIN
from runs.tools.conversation_tools import CONVERSATION_TOOLS
from runs.tools.mcp import mcp_toolset
from runs.tools.registry import RECORDED, Registry
from runs.tools.sandbox.shell import SHELL
from runs.tools.sandbox.write_tools import WRITE_TOOLS


def _recorded(settings: Mapping[str, Any]) -> Toolset:
    """Return the toolset of a fixture. Imported by name, because runs.tools must not import runs.fixtures."""
    toolset: Toolset = import_string("runs.fixtures.playing.toolset.for_agent")(settings)
    return toolset


TOOLS = Registry([*BUILTIN, *CONVERSATION_TOOLS, *AGENT_TOOLS, SHELL, *WRITE_TOOLS])
TOOLS.register_toolset(RECORDED, _recorded)
TOOLS.register_family(mcp_toolset.PREFIX, mcp_toolset.for_agent)
