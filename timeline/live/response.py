"""The responses of views that open a stream. They describe the stream; timeline.live.server sends it."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse

from agentops.accounts import incarnations
from timeline.access import Permit
from timeline.live.cursor import StreamCursor
from timeline.live.rendering import Rendering
from timeline.models import Log

#: The body on a WSGI server, where a stream would occupy a thread for minutes.
NOT_HERE = ": streams are served by the ASGI processes of this site; this is not one\n\n"


class EventStreamResponse(HttpResponse):
    """The base class: a permit, and headers that disable buffering in proxies."""

    def __init__(self, permit: Permit) -> None:
        super().__init__(NOT_HERE, content_type="text/event-stream; charset=utf-8")
        self.permit = permit
        self.headers["Cache-Control"] = "no-cache, no-store, no-transform"
        self.headers["X-Accel-Buffering"] = "no"


class LogStream(EventStreamResponse):
    """A stream of the events of a log after a cursor, up to its final event."""

    def __init__(
        self, ledger: Log, cursor: StreamCursor, rendering: Rendering, permit: Permit, *, incarnation: int, ended: bool
    ) -> None:
        super().__init__(permit)
        self.log_id: UUID = ledger.pk
        self.last_seq = ledger.last_seq
        self.cursor = cursor
        #: The incarnation of the database at the time of the request.
        self.incarnation = incarnation
        self.rendering = rendering
        #: Whether the log already has its final event.
        self.ended = ended


class ProjectStream(EventStreamResponse):
    """A stream of the IDs of a project's runs that are created or change status. Nothing is replayed."""

    def __init__(self, project_id: UUID, permit: Permit) -> None:
        super().__init__(permit)
        self.project_id = project_id


def log_stream(ledger: Log, cursor: StreamCursor, rendering: Rendering, permit: Permit, *, ended: bool) -> HttpResponse:
    """Return the response for a stream of a log.

    If the reader already has all events of an ended log, the status is 204, which stops an EventSource. A merged
    rendering sends the event `end` instead, because htmx reconnects after any status other than 200.
    """
    incarnation = incarnations.current()
    if ended and not rendering.is_merged and cursor == StreamCursor(ledger.last_seq, incarnation):
        return HttpResponse(status=204)
    return LogStream(ledger, cursor, rendering, permit, incarnation=incarnation, ended=ended)
