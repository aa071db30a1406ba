"""`POST /api/internal/sessions`: sessions of agent programs that `agentops watch` follows on another machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.base.refusals import Conflict, Refusal
from runs.api.ingest.ingest_view import IngestView, count_events
from runs.api.requests.bodies import Flag, LongTextParser, StrictSerializer, StringField, document_of
from runs.external import ingest_counts, live_sessions, session_items
from runs.external.event_input import MAX_IDENTIFIER, MAX_RUN_REFERENCE, IncomingEvent
from runs.external.import_runs import ImportHindered, NotImported

#: Maximum event IDs in one request.
MAX_IDS = 5_000
_RUN_ID = "ID of the run in its program, with the format before it: `claude-code:<session>`."
_SESSIONS = {
    "application/json": {
        "type": "object",
        "properties": {
            "runs": {
                "type": "array",
                "maxItems": session_items.MAX_RUNS,
                "items": session_items.HEAD_SCHEMA,
                "description": "The runs of all events, parents before children.",
            },
            "events": {
                "type": "array",
                "maxItems": session_items.MAX_EVENTS,
                "items": session_items.EVENT_SCHEMA,
                "description": "What is new, in order.",
            },
        },
        "additionalProperties": False,
    }
}
_STORED = {
    "type": "object",
    "properties": {
        "stored": {"type": "integer", "description": "Number of events that were stored by this request."},
        "known": {"type": "integer", "description": "Number of events that had been stored before."},
    },
    "required": ["stored", "known"],
}
_KNOWN = {
    "type": "object",
    "properties": {
        "event_ids": {"type": "array", "items": {"type": "string"}, "description": "Those that are stored."},
        "open_id": {
            "type": ["string", "null"],
            "description": "Of these, the one before the answer that is being received.",
        },
    },
    "required": ["event_ids", "open_id"],
}
_WAITS = {
    "type": "object",
    "properties": {"settled": {"type": "boolean", "description": "Whether the run is not running any more."}},
    "required": ["settled"],
}


class EventQuestion(StrictSerializer):
    """Request for the stored events of a run."""

    runId = StringField(max_length=MAX_RUN_REFERENCE, help_text=_RUN_ID)
    event_ids = serializers.ListField(child=StringField(max_length=MAX_IDENTIFIER), max_length=MAX_IDS)


class Quiet(StrictSerializer):
    """A report that a session has been silent."""

    runId = StringField(max_length=MAX_RUN_REFERENCE, help_text=_RUN_ID)
    with_open_calls = Flag(default=False, help_text="Also if a tool may be at work: its outcome is unknown then.")


class Sessions(IngestView):
    """Store new events in sessions of agent programs, all or nothing.

    `agentops watch --url` sends this request. An event whose ID the run already has is not stored again.
    """

    parser_classes = [LongTextParser]

    @extend_schema(request=_SESSIONS, responses={200: OpenApiResponse(_STORED, "Everything is stored.")})
    def post(self, request: Request, **_: Any) -> Response:
        project = self.get_ingest_project()
        document = document_of(request)
        with _refusals():
            items = session_items.load(document)
            events = Counter(item.run_ref for item in items if isinstance(item, IncomingEvent))
            count_events(request._request, project.pk, events)
            report = live_sessions.store(project, items, by=self.principal.actor)
        counts = {ingest_counts.ACCEPTED: report.events, ingest_counts.DUPLICATE: report.known_events}
        ingest_counts.count(project.pk, self.principal.actor, {name: count for name, count in counts.items() if count})
        return Response({"stored": report.events, "known": report.known_events})


class KnownSessionEvents(IngestView):
    """Return which events of a session are stored, so that `agentops watch` sends only the others."""

    serializer_class = EventQuestion

    @extend_schema(responses={200: OpenApiResponse(_KNOWN, "The events that are stored.")})
    def post(self, request: Request, **_: Any) -> Response:
        project = self.get_ingest_project()
        body = self.get_serializer(data=document_of(request))
        body.is_valid(raise_exception=True)
        data = body.validated_data
        # Names that cannot belong to a run or an event cause no query.
        names = [name for name in data["event_ids"] if name.isprintable()]
        if not data["runId"].isprintable():
            names = []
        known = live_sessions.known_events(project, data["runId"], names) if names else live_sessions.KnownEvents()
        return Response({"event_ids": sorted(known.event_ids), "open_id": known.open_id})


class QuietSession(IngestView):
    """Set a running session to waiting, because its program has written nothing for a while."""

    serializer_class = Quiet

    @extend_schema(responses={200: OpenApiResponse(_WAITS, "Whether the session waits now, or has ended.")})
    def post(self, request: Request, **_: Any) -> Response:
        project = self.get_ingest_project()
        body = self.get_serializer(data=document_of(request))
        body.is_valid(raise_exception=True)
        data = body.validated_data
        settled = not data["runId"].isprintable() or live_sessions.let_wait(
            project, data["runId"], with_open_calls=data["with_open_calls"]
        )
        return Response({"settled": settled})


@contextmanager
def _refusals() -> Iterator[None]:
    """Translate errors of sessions into answers."""
    try:
        yield
    except ImportHindered as error:
        raise Refusal(str(error), code="import_hindered", status=429, headers={"Retry-After": "5"}) from None
    except NotImported as error:
        raise Conflict(str(error), code="run_not_imported") from None
