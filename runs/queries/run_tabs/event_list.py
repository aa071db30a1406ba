"""The stored events of a run by type, and the event of a tool call."""

from __future__ import annotations

from uuid import UUID

from timeline import log
from timeline.events import EventType
from timeline.models import Event

#: Choices of the filter by type: prefixes of event types, with their labels.
FAMILIES = (
    ("run.", "Run"),
    ("message.", "Messages"),
    ("llm.", "Model calls"),
    ("tool.", "Tool calls"),
    ("retry.", "Retries"),
    ("hook.", "Hooks"),
    ("approval.", "Approvals"),
    ("command.", "Commands"),
    ("policy.", "Policies"),
    ("budget.", "Budgets"),
    ("child_run.", "Child runs"),
    ("file.", "Files"),
    ("git.", "Commits"),
)
CHUNK_TYPES = (EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA, EventType.TOOL_OUTPUT)


def stored_events(run_id: UUID, after: int, limit: int, *, prefix: str = "", chunks: bool = True) -> list[Event]:
    """Return the next events after event `after`, in order: those whose type starts with `prefix`.

    Without `chunks`, pieces of streamed texts are left out.
    """
    events = log.events_of(run_id).filter(seq__gt=after)
    if prefix:
        events = events.filter(type__startswith=prefix)
    return list((events if chunks else events.exclude(type__in=CHUNK_TYPES))[:limit])


def event_of_call(run_id: UUID, call_id: UUID) -> int | None:
    """Return the seq of the first event of a tool call: its start, or else its end. Scans the log."""
    events = log.events_of(run_id).filter(type__in=[EventType.TOOL_START, EventType.TOOL_END], ref_id=call_id)
    return events.values_list("seq", flat=True).first()
