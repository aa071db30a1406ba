"""Where events come from: the agent, the session and the flow run behind a log, which envelopes name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from runs.models import AgentRun, FlowRun
from runs.providers import flow_node
from timeline.models import Event

#: The beginning of the types that are about a node of a flow.
_NODE = "node."


@dataclass(frozen=True)
class EventOrigin:
    """The run, or the flow run, of a log."""

    session_id: str = ""
    #: The agent of a run of this site. None if the events of the log name their agents.
    agent_id: str | None = None
    #: The agents of a flow run's nodes, by the ID of the node.
    agents_of_nodes: Mapping[str, str] = field(default_factory=dict)
    flow_run_id: UUID | None = None
    is_removed: bool = False

    def agent_of(self, event: Event) -> str:
        """Return the agent that an event is about; empty for tools, questions and what a flow does itself."""
        if self.agent_id is None:
            return event.node_id
        # The flow and a node of it may have the same name.
        return self.agents_of_nodes.get(event.node_id, "") if event.type.startswith(_NODE) else self.agent_id


def origins_of(log_ids: Collection[UUID]) -> dict[UUID, EventOrigin]:
    """Return the origins of logs by their IDs. Logs without a run are left out. At most two queries."""
    runs = AgentRun.with_removed.filter(pk__in=log_ids).values_list(
        *("pk", "session_id", "source", "agent_config__provider", "agent_config__agent_id"),
        *("flow_run_id", "removed_at"),
    )
    origins = {
        run_id: EventOrigin(session_id, _agent_of(source, provider, agent), {}, flow_run_id, removed_at is not None)
        for run_id, session_id, source, provider, agent, flow_run_id, removed_at in runs
    }
    others = set(log_ids) - set(origins)
    flow_runs = FlowRun.with_removed.filter(pk__in=others) if others else FlowRun.with_removed.none()
    for flow_run_id, definition, removed_at in flow_runs.values_list("pk", "definition", "removed_at"):
        agents = _agents_of(definition)
        origins[flow_run_id] = EventOrigin("", "", agents, flow_run_id, removed_at is not None)
    return origins


def _agent_of(source: str, provider: object, agent: object) -> str | None:
    """Return the agent of a run. The events of other programs name it themselves, and may name several."""
    if source != AgentRun.Source.NATIVE:
        return None
    return "" if provider == flow_node.NAME else str(agent or "")


def _agents_of(definition: Mapping[str, Any]) -> dict[str, str]:
    return {node["id"]: node["agent"] for node in definition["nodes"] if node["type"] == "agent"}
