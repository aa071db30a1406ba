"""The answers of ingest, and their schemas."""

from __future__ import annotations

from typing import Any

import orjson
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse

from runs.api.problems import JSON
from runs.external.ingest import MAX_EVENTS, EventResult
from timeline.events import EVENT_TYPES, RESERVED_TYPES
from timeline.events.vocabulary import CUSTOM_TYPE, MAX_TYPE_LENGTH

_RESULT = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["accepted", "duplicate", "rejected"]},
        "runId": {"type": ["string", "null"], "format": "uuid", "description": "ID of the run on this site."},
        "event_id": {"type": ["string", "null"], "description": "The event's ID, as sent."},
        "seq": {
            "type": ["integer", "null"],
            "description": "Sequence number of the event; of a duplicate or a conflict, that of the stored one.",
        },
        "duplicate": {"type": "boolean", "description": "Whether the event was stored before."},
        "late": {"type": "boolean", "description": "Whether the run had ended: the event changes no row."},
        "clock_skew": {"type": "boolean", "description": "Whether `ts` differs by more than 24 hours from now."},
        "code": {"type": "string", "description": "Why the event was rejected."},
        "detail": {"type": "string"},
        "pointer": {"type": "string", "description": "JSON pointer into the event."},
    },
    "required": ["status"],
}
BATCH_ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "results": {"type": "array", "items": _RESULT, "description": "One for each event, in the order of the batch."},
        "accepted": {"type": "integer"},
        "duplicate": {"type": "integer"},
        "rejected": {"type": "integer"},
    },
    "required": ["results", "accepted", "duplicate", "rejected"],
}
#: A single event gets its result alone.
ALL_STORED = OpenApiResponse(
    {"anyOf": [_RESULT, BATCH_ANSWER]}, "All events are stored. A single event gets its result alone."
)
SOME_REJECTED = OpenApiResponse(BATCH_ANSWER, "Some events are rejected; the others are stored.")
_ALIASES = {"eventId": "event_id", "run_id": "runId", "run_kind": "runKind", "node_id": "nodeId"}
_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event_id": {
            "type": "string",
            "maxLength": 128,
            "pattern": "^[A-Za-z0-9._:-]+$",
            "description": "Makes a repeated event harmless.",
        },
        "runId": {
            "type": "string",
            "minLength": 1,
            "maxLength": 255,
            "description": "Our run ID, or the runner's own. Printable text.",
        },
        "type": {
            "anyOf": [
                {"type": "string", "enum": sorted(EVENT_TYPES - RESERVED_TYPES)},
                {"type": "string", "pattern": CUSTOM_TYPE, "maxLength": MAX_TYPE_LENGTH},
            ]
        },
        "ts": {"type": ["string", "integer"], "description": "ISO 8601, or milliseconds since 1970."},
        "payload": {"type": "object"},
        "runKind": {"type": "string", "enum": ["session", "job"]},
        "step": {"type": "integer", "minimum": 0},
        "nodeId": {"type": "string", "maxLength": 128},
        **{alias: {"description": f"The same as `{name}`."} for alias, name in _ALIASES.items()},
        **{name: {"description": "Accepted and dropped: the server sets it."} for name in ("seq", "phase", "source")},
    },
    "required": ["type"],
    "additionalProperties": False,
}
EVENTS_BODY: dict[str, Any] = {
    "application/json": {
        "oneOf": [
            _EVENT,
            {
                "type": "object",
                "properties": {"events": {"type": "array", "items": _EVENT, "maxItems": MAX_EVENTS}},
                "required": ["events"],
                "additionalProperties": False,
            },
        ]
    }
}


def answer(body: dict[str, Any], status: int = 200) -> HttpResponse:
    """Return an answer with results. DRF's renderer would take longer than the database takes for the events."""
    return HttpResponse(orjson.dumps(body), status=status, content_type=JSON)


def result_of(result: EventResult) -> dict[str, Any]:
    """Return the answer for one event."""
    error = result.error
    status = "rejected" if error is not None else "duplicate" if result.duplicate else "accepted"
    answer: dict[str, Any] = {
        "status": status,
        "runId": result.run_id,
        "event_id": result.event_id,
        "seq": result.seq,
        "duplicate": result.duplicate,
    }
    if result.late:
        answer["late"] = True
    if result.clock_skew:
        answer["clock_skew"] = True
    if error is not None:
        answer |= {"code": error.code, "detail": error.detail, "pointer": error.pointer}
    return answer
