"""The public imports for modules with custom tools; see docs/guides/tools.md.

from agentops.tools import tool

@tool(effect="read")
def order_status(order: str) -> str:
    \"\"\"Return the status of an order.\"\"\"
"""

from __future__ import annotations

from runs.statuses import Effect
from runs.tools.base import OutcomeUnknown, Tool, ToolContext, ToolDenied, ToolFailed, ToolResult
from runs.tools.functions import tool
from timeline.events.work import FileChanged, GitCommit

__all__ = [
    "Effect",
    "FileChanged",
    "GitCommit",
    "OutcomeUnknown",
    "Tool",
    "ToolContext",
    "ToolDenied",
    "ToolFailed",
    "ToolResult",
    "tool",
]
