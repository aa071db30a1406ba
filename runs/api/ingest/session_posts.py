"""Reports about sessions of agent programs on other machines.

`POST /api/internal/sessions…`: sessions that `agentops watch` follows.
`POST /api/internal/agent-hooks/claude-code`: the input of Claude Code's hooks.
"""

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
from runs.api.requests.bodies import Flag, LongTextParser, StrictSerializer, StringField, body_of, document_of
from runs.api.requests.pagination import object_of
from runs.external import claude_code_hooks, ingest_counts, live_sessions, session_items
from runs.external.event_input import MAX_IDENTIFIER, MAX_RUN_REFERENCE, IncomingEvent
from runs.external.import_runs import ImportHindered, NotImported
from runs.external.ingest import Sender

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
                "description": "The new events, in order.",
            },
        },
        "additionalProperties": False,
    }
}
_STORED = object_of(
    {
        "stored": {"type": "integer", "description": "Number of events that were stored by this request."},
        "known": {"type": "integer", "description": "Number of events that had been stored before."},
    }
)
_KNOWN = object_of(
    {
        "event_ids": {"type": "array", "items": {"type": "string"}, "description": "Those that are stored."},
        "open_id": {
            "type": ["string", "null"],
            "description": "Of these, the last event before an answer whose end is not stored yet.",
        },
    }
)
_WAITS = object_of({"settled": {"type": "boolean", "description": "Whether the run is not running any more."}})


class EventQuestion(StrictSerializer):
    """Request for the stored events of a run."""

    runId = StringField(max_length=MAX_RUN_REFERENCE, help_text=_RUN_ID)
    event_ids = serializers.ListField(child=StringField(max_length=MAX_IDENTIFIER), max_length=MAX_IDS)


class Quiet(StrictSerializer):
    """A report that a session has been silent."""

    runId = StringField(max_length=MAX_RUN_REFERENCE, help_text=_RUN_ID)
    with_open_calls = Flag(
        default=False, help_text="Also if a tool may still be working; its outcome then becomes unknown."
    )


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
        project, data = self.get_ingest_project(), body_of(EventQuestion, request)
        # IDs with control characters cannot exist, and cause no query.
        event_ids = [event_id for event_id in data["event_ids"] if event_id.isprintable()]
        if event_ids and data["runId"].isprintable():
            known = live_sessions.known_events(project, data["runId"], event_ids)
        else:
            known = live_sessions.KnownEvents()
        return Response({"event_ids": sorted(known.event_ids), "open_id": known.open_id})


class QuietSession(IngestView):
    """Set a running session to waiting, because its program has written nothing for a while."""

    serializer_class = Quiet

    @extend_schema(responses={200: OpenApiResponse(_WAITS, "Whether the session waits now, or has ended.")})
    def post(self, request: Request, **_: Any) -> Response:
        project, data = self.get_ingest_project(), body_of(Quiet, request)
        settled = not data["runId"].isprintable() or live_sessions.let_wait(
            project, data["runId"], with_open_calls=data["with_open_calls"]
        )
        return Response({"settled": settled})


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise errors of stored sessions as refusals."""
    try:
        yield
    except ImportHindered as error:
        raise Refusal(str(error), code="import_hindered", status=429, headers={"Retry-After": "5"}) from None
    except NotImported as error:
        raise Conflict(str(error), code="run_not_imported") from None


_HOOK = {
    "application/json": {
        "type": "object",
        "properties": {
            "hook_event_name": {"type": "string"},
            "session_id": {"type": "string"},
            "message": {"type": "string", "description": "Of a notification."},
            "notification_type": {"type": "string"},
            "tool_name": {"type": "string"},
            "tool_input": {"type": "object"},
            "agent_type": {"type": "string", "description": "Of a sub-agent."},
        },
        "additionalProperties": True,
        "description": "The JSON that Claude Code writes to the input of a hook. Other fields are dropped.",
    }
}
_ANSWER = object_of(
    {
        "stored": {
            "type": "boolean",
            "description": "Whether an event was stored: the session is known, and the hook is news.",
        }
    }
)


class ClaudeCodeHooks(IngestView):
    """Record a hook of Claude Code: the session works, waits, or starts a sub-agent.

    Unknown hooks, and hooks that do not change the status, are accepted and ignored, because Claude Code cannot handle
    errors of a hook.
    """

    parser_classes = [LongTextParser]

    @extend_schema(request=_HOOK, responses={200: OpenApiResponse(_ANSWER, "The hook was received.")})
    def post(self, request: Request, **_: Any) -> Response:
        sender = Sender(self.get_ingest_project(), self.principal.actor)
        return Response({"stored": claude_code_hooks.record_claude_code(sender, document_of(request))})
