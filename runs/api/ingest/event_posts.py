"""`POST /api/internal/agent-events`: one or many events of external runners."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request

from agentops.base.refusals import Invalid, Refusal
from runs import chaos
from runs.api.ingest.ingest_view import IngestView, count_events, give_back_events
from runs.api.problems import JSON
from runs.api.requests.bodies import document_of
from runs.api.requests.pagination import object_of
from runs.external.ingest import MAX_EVENTS, EventResult, Sender, record
from timeline.events import EVENT_TYPES, RESERVED_TYPES
from timeline.events.base import CUSTOM_TYPE, MAX_TYPE_LENGTH

_RESULT = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["accepted", "duplicate", "rejected"]},
        "runId": {"type": ["string", "null"], "format": "uuid", "description": "ID of the run on this site."},
        "event_id": {"type": ["string", "null"], "description": "The event's ID, as sent."},
        "seq": {
            "type": ["integer", "null"],
            "description": "Sequence number of the event; for a duplicate or a conflict, that of the stored event.",
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
BATCH_ANSWER: dict[str, Any] = object_of(
    {
        "results": {"type": "array", "items": _RESULT, "description": "One for each event, in the order of the batch."},
        "accepted": {"type": "integer"},
        "duplicate": {"type": "integer"},
        "rejected": {"type": "integer"},
    }
)
ALL_STORED = OpenApiResponse(
    {"anyOf": [_RESULT, BATCH_ANSWER]},
    "All events are stored. The answer to an event that was not sent in a list is its result.",
)
SOME_REJECTED = OpenApiResponse(BATCH_ANSWER, "Some events are rejected; the others are stored.")
#: Alias of a field → the field.
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
            "description": "The ID of the run on this site, or the runner's own ID of it: printable text.",
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
    """Return the answer as JSON. DRF's renderer would take longer than the database takes to store the events."""
    return HttpResponse(orjson.dumps(body), status=status, content_type=JSON)


def result_of(result: EventResult) -> dict[str, Any]:
    """Return the result of one event as it is sent to the runner."""
    error = result.error
    status = "rejected" if error is not None else "duplicate" if result.duplicate else "accepted"
    row: dict[str, Any] = {
        "status": status,
        "runId": result.run_id,
        "event_id": result.event_id,
        "seq": result.seq,
        "duplicate": result.duplicate,
    }
    if result.late:
        row["late"] = True
    if result.clock_skew:
        row["clock_skew"] = True
    if error is not None:
        row |= {"code": error.code, "detail": error.detail, "pointer": error.pointer}
    return row


class AgentEvents(IngestView):
    """Store events of external runners: one event, or `{"events": [...]}` with at most 500.

    The answer comes after the commit. Each event is accepted with its sequence number, or is a duplicate of a stored
    one, or is rejected with a code. Events of one run are numbered in the order of the request.
    """

    @extend_schema(request=EVENTS_BODY, responses={200: ALL_STORED, 207: SOME_REJECTED, 422: BATCH_ANSWER})
    def post(self, request: Request, **_: Any) -> HttpResponse:
        project = self.get_ingest_project()
        document = document_of(request)
        sender = Sender(project, self.principal.actor)
        if "events" not in document:
            return self._single(sender, document)
        documents = _batch(document)
        results = [result_of(result) for result in self._record(sender, documents)]
        counts = Counter(result["status"] for result in results)
        rejected = counts["rejected"]
        status = 200 if not rejected else 422 if rejected == len(results) else 207
        body = {"results": results, **{name: counts[name] for name in ("accepted", "duplicate", "rejected")}}
        return answer(body, status)

    def _single(self, sender: Sender, document: dict[str, Any]) -> HttpResponse:
        """Store one event and return its result. Raises `Refusal` if the event is rejected."""
        if not document:
            raise Invalid("the body is an empty object: send an event, or events", code="events_required")
        [result] = self._record(sender, [document])
        if result.error is not None:
            result.error.data |= {} if result.seq is None else {"seq": result.seq}
            raise result.error
        return answer(result_of(result))

    def _record(self, sender: Sender, documents: list[Any]) -> list[EventResult]:
        """Store the events within the rate limits, which events that are too large do not use up."""
        request, project_id = self.request._request, sender.project.pk
        count_events(request, project_id, _counts_by_run(documents))
        self.has_recorded = True
        results = record(sender, documents)
        too_large = [
            document
            for document, result in zip(documents, results, strict=True)
            if result.error is not None and result.error.status == 413
        ]
        give_back_events(request, project_id, _counts_by_run(too_large))
        chaos.point("ingest.committed")
        return results


def _counts_by_run(documents: list[Any]) -> Counter[str]:
    """Return the number of events of each run, by the run ID that the events name."""
    return Counter(str(one.get("runId") or one.get("run_id")) for one in documents if isinstance(one, dict))


def _batch(document: dict[str, Any]) -> list[Any]:
    """Return the events of a batch, which are not checked yet. Raises `Refusal`."""
    unknown = sorted(document.keys() - {"events"})
    if unknown:
        raise Invalid(f"a body with events has no field {unknown[0][:64]!r}", code="unknown_field")
    documents = document["events"]
    if not isinstance(documents, list):
        raise Invalid("events must be a list", code="events_required")
    if not documents:
        raise Invalid("events is empty", code="events_empty")
    if len(documents) > MAX_EVENTS:
        text = f"{len(documents)} events in a batch: send at most {MAX_EVENTS}"
        raise Refusal(text, code="batch_too_large", status=413)
    return documents
