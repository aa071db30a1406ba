"""Events that a runner has copied from a log, and that would contradict what the log here tells already."""

from __future__ import annotations

from dataclasses import replace

from runs.external.event_input import IncomingEvent
from timeline import events


def as_note(event: IncomingEvent) -> IncomingEvent:
    """Return the event under its type with `x.` before it: as a custom event, it changes nothing."""
    assert isinstance(event.payload, events.Payload)
    type_ = f"x.{event.type}"
    return replace(event, type=type_, payload=events.parse(type_, events.dump(event.payload)[1]))
