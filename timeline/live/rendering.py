"""Render events for a live stream: events to pieces, and pieces to SSE messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django_eventstream.utils import sse_encode_event

from timeline import events, log, outgoing
from timeline.live.cursor import StreamCursor
from timeline.models import Event
from timeline.reasons import ABANDONED

#: SSE event name → data, or the data of several messages. An empty piece only moves the reader's cursor.
Piece = Mapping[str, str | Sequence[str]]
#: Maximum size of a frame: a connection with 5 kB/s receives it before the timeout.
FRAME_BYTES = 1 << 16
#: In a merged batch, texts with this name are joined; for other names the last one is used.
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
    #: Number of events that a reader may lag behind; beyond that, its page is reloaded. None: no limit.
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
    """Encode a piece as SSE. Only its last message has the id, so that a lost connection skips none of them.

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
    return [
        (name, each) for name, data in piece.items() for each in ([data] if isinstance(data, str) else data)
    ]  # fmt: skip


def _join(pieces: Sequence[Piece]) -> Piece:
    """Merge pieces. Rows come last, with the id by which a page skips rows that it already has."""
    merged = {name: data for piece in pieces for name, data in piece.items() if name != ROWS}
    rows = "".join([data for piece in pieces for name, data in _messages(piece) if name == ROWS])
    return merged | {ROWS: rows} if rows else merged


def _as_json(log_id: UUID, batch: Sequence[Event]) -> list[Piece]:
    return [{"message": _dumps(log.wire(event))} for event in outgoing.mask_events(batch)]


def _dumps(value: object) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, separators=(",", ":"), ensure_ascii=False)


#: The JSON form of the API, one message per event.
JSON = Rendering("json", _as_json)
