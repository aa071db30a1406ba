"""Calls of spawn_agents, and the child runs that they open. May import the product."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ToolCallPart

from runs.models import AgentRun
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker


def spawns(*tasks: dict[str, Any], call_id: str = "call-spawn", **more: Any) -> ToolCallPart:
    return ToolCallPart("spawn_agents", {"tasks": list(tasks), **more}, call_id)


def task(agent: str, prompt: str = "Look.") -> dict[str, Any]:
    return {"agent": agent, "prompt": prompt}


def work(worker: Worker) -> None:
    """Advance runs until none can continue without a person."""
    while advance_ready(worker):
        pass


def children_of(run: AgentRun) -> list[AgentRun]:
    return list(AgentRun.objects.filter(parent_run=run).order_by("pk"))
