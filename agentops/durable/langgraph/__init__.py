"""LangGraph: graphs and agents of LangChain whose runs a site stores, shows and continues after a crash.

The guide is docs/guides/langgraph.md.
"""

from agentops.durable.langgraph.context import current_run
from agentops.durable.langgraph.driving import durable_function
from agentops.durable.langgraph.interrupts import answer
from agentops.durable.langgraph.saver import AgentopsSaver

__all__ = ["AgentopsSaver", "answer", "current_run", "durable_function"]
