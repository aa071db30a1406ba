"""Fields of a runner's event that its row has no column for."""

from __future__ import annotations

from typing import TypeVar

from timeline.events import Payload

P = TypeVar("P", bound=Payload)
_NOTES = ("message", "extra", "inferred", "args_summary")


def with_notes(payload: P, received: Payload) -> P:
    """Return the payload made from rows, plus the notes that only the received payload has."""
    notes = {name: getattr(received, name, None) for name in _NOTES if name in type(payload).model_fields}
    told = {name: note for name, note in notes.items() if note}
    return payload.model_copy(update=told) if told else payload
