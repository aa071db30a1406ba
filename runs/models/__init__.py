"""The models of agents, runs, messages, tool calls and their records."""

from runs.models.agent import Agent
from runs.models.checkpoint import Attempt, Checkpoint, RunError, TurnUsage
from runs.models.chore import Chore
from runs.models.command import RunCommand
from runs.models.external_run import ExternalRun
from runs.models.message import AgentRunMessage
from runs.models.run import AgentRun
from runs.models.search_entry import SearchEntry, SearchPosition
from runs.models.tool_call import AgentRunToolCall

__all__ = [
    "Agent",
    "AgentRun",
    "AgentRunMessage",
    "AgentRunToolCall",
    "Attempt",
    "Checkpoint",
    "Chore",
    "ExternalRun",
    "RunCommand",
    "RunError",
    "SearchEntry",
    "SearchPosition",
    "TurnUsage",
]
