"""Events that a runner copied from a log and that would contradict this server's log."""

from __future__ import annotations

from dataclasses import replace

from runs.external.event_input import IncomingEvent
from timeline import events


def as_note(event: IncomingEvent) -> IncomingEvent:
    """Return the event as a custom event, with the type prefix `x.`, so that it changes nothing."""
    assert isinstance(event.payload, events.Payload)
    type_ = f"x.{event.type}"
    return replace(event, type=type_, payload=events.parse(type_, events.dump(event.payload)[1]))
