"""The envelope: the format in which events are sent to receivers. Its ID is the same if an event is sent again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID, uuid5

from agentops.base import database_clock
from agentops.base.redaction import project_scope
from runs.models import AgentRun, FlowRun
from runs.models.telemetry import TEST
from runs.providers import flow_node
from runs.telemetry.sink_kind import Envelope, OutgoingEvent
from timeline import log
from timeline.models import Event
from timeline.reading import mask_events

#: The prefix of event types about a node of a flow.
_NODE = "node."


@dataclass(frozen=True)
class EventOrigin:
    """The run, or the flow run, of a log."""

    session_id: str = ""
    #: The agent of a native run. None if the events of the log name their agents.
    agent_id: str | None = None
    #: The agents of a flow run's nodes, by the ID of the node.
    agents_of_nodes: Mapping[str, str] = field(default_factory=dict)
    flow_run_id: UUID | None = None
    is_removed: bool = False

    def agent_of(self, event: Event) -> str:
        """Return the agent of an event; empty for tools, questions and the flow's own events."""
        if self.agent_id is None:
            return event.node_id
        # The flow's own events have the name of the flow there, and a node may have the same name.
        return self.agents_of_nodes.get(event.node_id, "") if event.type.startswith(_NODE) else self.agent_id


def origins_of(log_ids: Collection[UUID]) -> dict[UUID, EventOrigin]:
    """Return the origins of logs by the IDs of the logs, with at most two queries. Logs without a run are left out."""
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
        agents = {node["id"]: node["agent"] for node in definition["nodes"] if node["type"] == "agent"}
        origins[flow_run_id] = EventOrigin("", "", agents, flow_run_id, removed_at is not None)
    return origins


def _agent_of(source: str, provider: object, agent: object) -> str | None:
    """Return the agent of a native run; empty for tool and human nodes. None for runs of other programs, whose events
    name their agents.
    """
    if source != AgentRun.Source.NATIVE:
        return None
    return "" if provider == flow_node.NAME else str(agent or "")


# --- Envelopes ---

_NAMESPACE = UUID("5d3f0d9e-3a41-4d7c-9f0a-6a1f6d2f8f11")


def id_of(event: Event) -> str:
    """Return the ID of an event for receivers, the same for each repeat.

    It includes the time of storing, because a restore from a backup assigns the same sequence numbers again.
    """
    return f"evt_{uuid5(_NAMESPACE, f'{event.log_id}:{event.seq}:{event.created_at.isoformat()}').hex}"


def outgoing(events: Sequence[Event]) -> list[OutgoingEvent]:
    """Return the events with their envelopes, in the same order. Events of removed runs are left out.

    The rows must have been loaded with their logs. Their secrets are masked in place, by the rules of their projects.
    """
    origins = origins_of({event.log_id for event in events})
    unknown = EventOrigin()
    sent = [event for event in events if not origins.get(event.log_id, unknown).is_removed]
    for project_id, rows in groupby(sent, key=lambda event: event.log.project_id):
        with project_scope.limited_to(project_id):
            mask_events(list(rows))
    return [_outgoing(event, origins.get(event.log_id, unknown)) for event in sent]


def _outgoing(event: Event, origin: EventOrigin) -> OutgoingEvent:
    return OutgoingEvent(event, id_of(event), envelope_of(event, origin), origin.flow_run_id)


def envelope_of(event: Event, origin: EventOrigin) -> Envelope:
    """Return the envelope of an event. Its `payload` is the event as in the API, with its ID for receivers."""
    return {
        "event_type": event.type,
        "timestamp_ms": round(event.ts.timestamp() * 1000),
        "session_id": origin.session_id or str(event.log_id),
        "agent_id": origin.agent_of(event),
        "payload": {"id": id_of(event), **log.wire(event)},
    }


def test_event(message_id: str) -> OutgoingEvent:
    """Return an event for testing a sink. It belongs to no run."""
    now = database_clock.now()
    event = Event(type=TEST, ts=now, created_at=now, payload={"message": "This is a test of this sink."})
    envelope = {
        "event_type": TEST,
        "timestamp_ms": round(now.timestamp() * 1000),
        "session_id": "test",
        "agent_id": "",
        "payload": {"id": message_id, "type": TEST, "ts": now.isoformat(), "payload": event.payload},
    }
    return OutgoingEvent(event, message_id, envelope)
