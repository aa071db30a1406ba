"""What a view answers to open a stream. It only says what is to be streamed; timeline.live.server does it."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse

from agentops.projects import incarnations
from timeline.access import Permit
from timeline.live.cursor import StreamCursor
from timeline.live.rendering import Rendering
from timeline.models import Log

#: Read by whoever asks a server that has threads only (WSGI): there a stream would occupy one for minutes.
NOT_HERE = ": streams are served by the ASGI processes of this site; this is not one\n\n"


class ForeignOrigin(Exception):
    """A page of another site asks: it must not read with this browser's cookies."""

    code = "foreign_origin"
    status = 403


class EventStreamResponse(HttpResponse):
    """The base: headers that keep proxies from holding a stream back, and the permit that it lives by."""

    def __init__(self, permit: Permit) -> None:
        super().__init__(NOT_HERE, content_type="text/event-stream; charset=utf-8")
        self.permit = permit
        self.headers["Cache-Control"] = "no-cache, no-store, no-transform"
        self.headers["X-Accel-Buffering"] = "no"


class LogStream(EventStreamResponse):
    """The events of one log after a cursor, then those that come, until its terminal event."""

    def __init__(
        self, ledger: Log, cursor: StreamCursor, rendering: Rendering, permit: Permit, *, incarnation: int, ended: bool
    ) -> None:
        super().__init__(permit)
        self.log_id: UUID = ledger.pk
        self.last_seq = ledger.last_seq
        self.cursor = cursor
        #: Of the database, when the stream was asked for.
        self.incarnation = incarnation
        self.rendering = rendering
        #: The log has its terminal event already.
        self.ended = ended


class ProjectStream(EventStreamResponse):
    """The ids of a project's runs as they are created or change their status; nothing is replayed."""

    def __init__(self, project_id: UUID, permit: Permit) -> None:
        super().__init__(permit)
        self.project_id = project_id


def log_stream(ledger: Log, cursor: StreamCursor, rendering: Rendering, permit: Permit, *, ended: bool) -> HttpResponse:
    """The answer for one reader. Whoever has everything of an ended log gets 204, by which an EventSource stops;
    a merged rendering says `end` instead, because htmx opens a new EventSource after any other answer than 200."""
    incarnation = incarnations.current()
    if ended and not rendering.merged and cursor == StreamCursor(ledger.last_seq, incarnation):
        return HttpResponse(status=204)
    return LogStream(ledger, cursor, rendering, permit, incarnation=incarnation, ended=ended)


def refuse_foreign(request: HttpRequest) -> None:
    """Browsers send Origin with requests from other sites; without one it is the same site or no browser."""
    origin = request.headers.get("Origin")
    if origin and origin != f"{request.scheme}://{request.get_host()}":
        raise ForeignOrigin("a stream cannot be opened from another site")
