"""The description of a stream that a view returns: where it begins, and how its events become SSE messages.

Browsers and API clients send the cursor of a log stream to continue it. A response describes the stream;
timeline.live.server sends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse
from django_eventstream.utils import sse_encode_event

from agentops.accounts.models import audit_models
from agentops.base.refusals import Refusal
from timeline import events, log, reading
from timeline.live.access_watch import Permit
from timeline.models import Event, Log
from timeline.reasons import ABANDONED

#: The form of a cursor: "412", or after a restore of the database "412.217123456" with the number of the incarnation.
PATTERN = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,10}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """The sequence number of the last event that a reader has, and the incarnation of the database."""

    seq: int = 0
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.incarnation}" if self.incarnation else str(self.seq)

    def is_valid_in(self, incarnation: int) -> bool:
        """Return whether the cursor is valid in this incarnation. The start of a log is always valid."""
        return self.seq == 0 or self.incarnation == incarnation


def cursor_of(request: HttpRequest) -> StreamCursor:
    """Return the cursor of a request. Raises a `Refusal` if it is invalid.

    `Last-Event-ID` takes precedence over `?afterSeq=`: a reconnecting browser sends both, and only the header is
    current.
    """
    header = request.headers.get("Last-Event-ID")
    if header:
        return _parse(header, "invalid_last_event_id", "Last-Event-ID")
    return _parse(request.GET.get("afterSeq") or "0", "invalid_after_seq", "afterSeq")


def _parse(text: str, code: str, where: str) -> StreamCursor:
    match = PATTERN.fullmatch(text)
    if match is None:
        raise Refusal(f"{where} must be the seq of an event, as in 412 or 412.0", code=code)
    return StreamCursor(int(match[1]), int(match[2] or 0))


#: The rendering of one event: SSE event name → data, or the data of several messages. Empty: only move the cursor.
Piece = Mapping[str, str | Sequence[str]]
#: Bytes after which a frame ends. A connection with 5 kB/s receives a frame of this size before the timeout.
FRAME_BYTES = 1 << 16
#: The event name whose texts are joined in a merged frame. Of other names, the frame contains the last text.
ROWS = "rows"


def encode_notice(name: str, data: str, cursor: StreamCursor | None) -> bytes:
    """Return a notice as an SSE message with its own name."""
    text: str = sse_encode_event(name, data, event_id=None if cursor is None else str(cursor))
    return text.encode()


@dataclass(frozen=True)
class Rendering:
    """A format of a log's stream. All readers of a log in the same format receive the same bytes."""

    name: str
    #: Returns exactly one piece per event, in order. Runs on a database thread.
    render: Callable[[UUID, Sequence[Event]], Sequence[Piece]]
    #: Whether the pieces of a frame are merged into one message per name.
    is_merged: bool = False
    #: Maximum events that a page may lag behind before it is reloaded; None without a limit.
    max_behind: int | None = None
    #: Returns whether a stream closes after an event. By default, it continues to the end of the log.
    closes_after: Callable[[Event], bool] = lambda _: False
    #: Returns the message that gives the reason why a stream ends or restarts: `end`, `stream-reset` with the last
    #: sequence number as JSON, or `auth-revoked`.
    notice: Callable[[str, str, StreamCursor | None], bytes] = encode_notice
    #: Whether streams end after a while, because their clients reopen them automatically.
    is_reopened: bool = True

    def items(self, log_id: UUID, batch: Sequence[Event], incarnation: int = 0) -> list[Item]:
        """Return the events ready for sending, encoded once for all readers where possible."""
        items = []
        with log.redaction_scope(log_id):
            pieces = self.render(log_id, batch)
        for event, piece in zip(batch, pieces, strict=True):
            cursor = str(StreamCursor(event.seq, incarnation))
            frame = b"" if self.is_merged else _encode(piece, cursor)
            items.append(Item(event.seq, cursor, piece, frame, _is_last(event), self.closes_after(event)))
        return items

    def frame(self, items: Sequence[Item]) -> tuple[bytes, int]:
        """Return the next frame of `items`, which follow the reader's cursor, and the number of items in it.

        Frames are limited: a reader that does not receive a frame in time is disconnected, and then starts with the
        same frame again.
        """
        size = count = 0
        while count < len(items) and size < FRAME_BYTES and not (count and items[count - 1].closes):
            size += items[count].size
            count += 1
        framed = items[:count]
        if self.is_merged:
            return _encode(_join([item.piece for item in framed]), framed[-1].cursor), count
        return b"".join([item.frame for item in framed]), count


@dataclass(frozen=True, slots=True)
class Item:
    """An event that is ready for sending."""

    seq: int
    #: The cursor after this event: the `id` of the SSE message.
    cursor: str
    piece: Piece
    frame: bytes
    terminal: bool
    #: Whether the stream closes after this event.
    closes: bool = False

    @property
    def size(self) -> int:
        """Return the approximate size in bytes."""
        return len(self.frame) + sum(len(data) for _, data in _messages(self.piece))


def _is_last(event: Event) -> bool:
    """Return whether a log ends with this event. An abandoned run may be reopened, so its stream stays open."""
    return event.type in events.TERMINAL_TYPES and event.payload.get("reason") != ABANDONED


def _encode(piece: Piece, cursor: str) -> bytes:
    """Encode a piece as SSE messages. Only the last has the id, so that a reconnecting reader gets all of them.

    An empty piece is encoded as an id without data, which browsers store without firing an event.
    """
    if not piece:
        return f"id: {cursor}\n\n".encode()
    messages = _messages(piece)
    last = len(messages) - 1
    encoded = [
        sse_encode_event(name, data, event_id=cursor if index == last else None)
        for index, (name, data) in enumerate(messages)
    ]
    return "".join(encoded).encode()


def _messages(piece: Piece) -> list[tuple[str, str]]:
    """Return the name and the data of each message of a piece."""
    return [(name, each) for name, data in piece.items() for each in ([data] if isinstance(data, str) else data)]


def _join(pieces: Sequence[Piece]) -> Piece:
    """Merge pieces into one. Rows come last, so that their message has the id by which a page skips known rows."""
    merged = {name: data for piece in pieces for name, data in piece.items() if name != ROWS}
    rows = "".join([data for piece in pieces for name, data in _messages(piece) if name == ROWS])
    return merged | {ROWS: rows} if rows else merged


def _as_json(log_id: UUID, batch: Sequence[Event]) -> list[Piece]:
    return [{"message": _dumps(log.wire(event))} for event in reading.mask_events(batch)]


def _dumps(value: object) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, separators=(",", ":"), ensure_ascii=False)


#: The JSON form of the API: one message for each event.
JSON = Rendering("json", _as_json)


#: The body that a WSGI server sends instead of a stream, which would occupy a thread for minutes.
NOT_HERE = ": streams are served by the ASGI processes of this site; this is not one\n\n"


class EventStreamResponse(HttpResponse):
    """The base class of stream responses: the permit, and headers that disable buffering in proxies."""

    def __init__(self, permit: Permit) -> None:
        super().__init__(NOT_HERE, content_type="text/event-stream; charset=utf-8")
        self.permit = permit
        self.headers["Cache-Control"] = "no-cache, no-store, no-transform"
        self.headers["X-Accel-Buffering"] = "no"


class LogStream(EventStreamResponse):
    """A stream of the events of a log after a cursor, up to its final event."""

    def __init__(
        self, log_row: Log, cursor: StreamCursor, rendering: Rendering, permit: Permit, *, incarnation: int, ended: bool
    ) -> None:
        super().__init__(permit)
        self.log_id: UUID = log_row.pk
        self.last_seq = log_row.last_seq
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


def log_stream(
    log_row: Log, cursor: StreamCursor, rendering: Rendering, permit: Permit, *, ended: bool
) -> HttpResponse:
    """Return the response for a stream of a log.

    If the reader already has all events of an ended log, the status is 204, which stops an EventSource. A merged
    rendering sends the event `end` instead, because htmx reconnects after any status other than 200.
    """
    incarnation = audit_models.current_incarnation()
    if ended and not rendering.is_merged and cursor == StreamCursor(log_row.last_seq, incarnation):
        return HttpResponse(status=204)
    return LogStream(log_row, cursor, rendering, permit, incarnation=incarnation, ended=ended)
