"""The registry of all tools: the built-in ones, those that speak to people and to agents, and those of recordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.module_loading import import_string

from runs.tools.agent_tools import AGENT_TOOLS
from runs.tools.base import Toolset
from runs.tools.builtin import BUILTIN
from runs.tools.conversation_tools import CONVERSATION_TOOLS
from runs.tools.registry import RECORDED, Registry


def _recorded(settings: Mapping[str, Any]) -> Toolset:
    """Return the toolset of a fixture. Imported by name, because runs.tools must not import runs.fixtures."""
    toolset: Toolset = import_string("runs.fixtures.toolset.for_agent")(settings)
    return toolset


TOOLS = Registry([*BUILTIN, *CONVERSATION_TOOLS, *AGENT_TOOLS])
TOOLS.register_toolset(RECORDED, _recorded)
