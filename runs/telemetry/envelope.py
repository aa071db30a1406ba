"""The envelope: the form in which events leave the site, with an ID by which receivers recognise repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID, uuid5

from runs.models.telemetry.delivery import TEST
from runs.telemetry.event_origins import EventOrigin, origins_of
from runs.telemetry.sink_kind import Envelope, OutgoingEvent
from timeline import database_clock, log
from timeline.models import Event
from timeline.outgoing import mask_events
from timeline.redaction import project_scope

_NAMESPACE = UUID("5d3f0d9e-3a41-4d7c-9f0a-6a1f6d2f8f11")


def id_of(event: Event) -> str:
    """Return the ID of an event for receivers, the same for each repeat.

    The time of storing is a part of it: after a restore from a backup, sequence numbers are given again.
    """
    return f"evt_{uuid5(_NAMESPACE, f'{event.log_id}:{event.seq}:{event.created_at.isoformat()}').hex}"


def outgoing(events: Sequence[Event]) -> list[OutgoingEvent]:
    """Return the events as they are sent, in the same order, with secrets masked by the rules of their projects.

    The rows must have been loaded with their logs. Events of runs that retention has removed are left out.
    """
    origins = origins_of({event.log_id for event in events})
    unknown = EventOrigin()
    shown = [event for event in events if not origins.get(event.log_id, unknown).is_removed]
    for project_id, rows in groupby(shown, key=lambda event: event.log.project_id):
        with project_scope.limited_to(project_id):
            mask_events(list(rows))
    return [_outgoing(event, origins.get(event.log_id, unknown)) for event in shown]


def envelope_of(event: Event, origin: EventOrigin) -> Envelope:
    """Return the envelope of an event, whose `payload` is the event as the API shows it, with its ID for receivers."""
    return {
        "event_type": event.type,
        "timestamp_ms": round(event.ts.timestamp() * 1000),
        "session_id": origin.session_id or str(event.log_id),
        "agent_id": origin.agent_of(event),
        "payload": {"id": id_of(event), **log.wire(event)},
    }


def test_event(message_id: str) -> OutgoingEvent:
    """Return an event that shows whether a sink works. It belongs to no run."""
    now = database_clock.now()
    event = Event(type=TEST, ts=now, created_at=now, payload={"message": "This is a test of this sink."})
    payload: dict[str, Any] = {"id": message_id, "type": TEST, "ts": now.isoformat(), "payload": event.payload}
    timestamp_ms = round(now.timestamp() * 1000)
    envelope = {
        "event_type": TEST, "timestamp_ms": timestamp_ms, "session_id": "test", "agent_id": "", "payload": payload,
    }  # fmt: skip
    return OutgoingEvent(event, message_id, envelope)


def ids_of(events: Iterable[OutgoingEvent]) -> list[str]:
    """Return the IDs of events for receivers."""
    return [event.id for event in events]


def _outgoing(event: Event, origin: EventOrigin) -> OutgoingEvent:
    return OutgoingEvent(event, id_of(event), envelope_of(event, origin), origin.flow_run_id)
