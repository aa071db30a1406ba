"""The stored events of a run by type, and the event of a tool call."""

from __future__ import annotations

from uuid import UUID

from timeline import log
from timeline.events import CHUNK_TYPES, REGISTRY, EventType, types_that
from timeline.models import Event

#: Choices of the filter by type: names of families, with their labels.
FAMILIES = {cls.event_kind.family.name: cls.event_kind.family.label for cls in REGISTRY.values()}


def stored_events(run_id: UUID, after: int, limit: int, *, family: str = "", chunks: bool = True) -> list[Event]:
    """Return the next events after event `after`, in order: those of a family of types, or all.

    Without `chunks`, pieces of streamed texts are left out.
    """
    events = log.events_of(run_id).filter(seq__gt=after)
    if family:
        events = events.filter(type__in=sorted(types_that(lambda kind: kind.family.name == family)))
    return list((events if chunks else events.exclude(type__in=CHUNK_TYPES))[:limit])


def event_of_call(run_id: UUID, call_id: UUID) -> int | None:
    """Return the seq of the first event of a tool call: its start, or else its end. Scans the log."""
    events = log.events_of(run_id).filter(type__in=[EventType.TOOL_START, EventType.TOOL_END], ref_id=call_id)
    return events.values_list("seq", flat=True).first()
