"""Agents of the OpenAI Agents SDK as durable runs: docs/guides/openai-agents.md.

Needs the package openai-agents: the extra `openai-agents` of the client's distribution.
"""

from agentops.durable.openai_agents.effects import effect, idempotency_key
from agentops.durable.openai_agents.runner import AgentopsRunner
from agentops.durable.openai_agents.served import GuardrailTripped, durable_function
from agentops.durable.openai_agents.site_sessions import AgentopsSession
from agentops.durable.openai_agents.tools import ToolFailed

__all__ = [
    "AgentopsRunner",
    "AgentopsSession",
    "GuardrailTripped",
    "ToolFailed",
    "durable_function",
    "effect",
    "idempotency_key",
]
