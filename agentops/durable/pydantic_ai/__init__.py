"""Durable agents of pydantic-ai. The guide is docs/guides/pydantic-ai.md.

It needs `agentops-runs-client[pydantic-ai]`.
"""

from agentops.durable.pydantic_ai.agents import durable_function
from agentops.durable.pydantic_ai.backend import idempotency_key
from agentops.durable.pydantic_ai.durability import AgentopsDurability
from agentops.durable.pydantic_ai.external_events import fail_event, resolve_event

__all__ = ["AgentopsDurability", "durable_function", "fail_event", "idempotency_key", "resolve_event"]
