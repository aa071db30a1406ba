"""What an event looks like on the wire: a rendering turns events into pieces, and pieces into SSE text."""

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

#: SSE event name → data. An empty one shows nothing, and only moves the reader's cursor.
Piece = Mapping[str, str]
#: Enough for one frame: a connection of 5 kB/s takes it in time.
FRAME_BYTES = 1 << 16
#: In a merged batch the texts under this name are joined; of any other name the last one counts.
ROWS = "rows"


@dataclass(frozen=True)
class Rendering:
    """One way to show a log. Everyone who reads a log in the same rendering shares the same bytes."""

    name: str
    #: Exactly one piece per event, in order. Runs on a database thread.
    render: Callable[[UUID, Sequence[Event]], Sequence[Piece]]
    #: Whether the pieces that travel together become one message per name.
    merged: bool = False
    #: A reader further behind than this is told to load anew instead of being sent everything.
    max_behind: int | None = None

    def items(self, log_id: UUID, found: Sequence[Event], incarnation: int = 0) -> list[Item]:
        """The events as they are kept for sending; what can be encoded once for all readers is encoded here."""
        made = []
        for event, piece in zip(found, self.render(log_id, found), strict=True):
            cursor = str(StreamCursor(event.seq, incarnation))
            frame = b"" if self.merged else _encoded(piece, cursor)
            made.append(Item(event.seq, cursor, piece, frame, event.type in _TERMINAL))
        return made

    def frame(self, items: Sequence[Item]) -> tuple[bytes, int]:
        """What a reader is sent next of `items`, which follow its cursor, and how many of them that was.

        Not everything at once: a slow reader is judged by whether it takes a frame in time, and one that was cut
        off in the middle of a merged frame begins with the same frame again.
        """
        size = count = 0
        while count < len(items) and size < FRAME_BYTES:
            size += items[count].size
            count += 1
        sent = items[:count]
        if self.merged:
            return _encoded(_joined([item.piece for item in sent]), sent[-1].cursor), count
        return b"".join([item.frame for item in sent]), count


@dataclass(frozen=True, slots=True)
class Item:
    """An event, ready to be sent."""

    seq: int
    #: Of a reader who has it: the `id` on the wire.
    cursor: str
    piece: Piece
    frame: bytes
    terminal: bool

    @property
    def size(self) -> int:
        return len(self.frame) + sum(map(len, self.piece.values()))


_TERMINAL = events.TERMINAL_TYPES


def _encoded(piece: Piece, cursor: str) -> bytes:
    """The id comes with the last message: a connection cut before it lets none of them be skipped. An empty piece is
    only an id, which a browser remembers and no listener hears."""
    if not piece:
        return f"id: {cursor}\n\n".encode()
    last = len(piece) - 1
    messages = [
        sse_encode_event(name, data, event_id=cursor if place == last else None)
        for place, (name, data) in enumerate(piece.items())
    ]
    return "".join(messages).encode()


def _joined(pieces: Sequence[Piece]) -> Piece:
    """Rows come last, with the id: a page drops rows that it has by the id they bring."""
    merged = {name: data for piece in pieces for name, data in piece.items() if name != ROWS}
    rows = "".join([piece[ROWS] for piece in pieces if ROWS in piece])
    return merged | {ROWS: rows} if rows else merged


def _as_json(log_id: UUID, found: Sequence[Event]) -> list[Piece]:
    return [{"message": _dumps(log.wire(event))} for event in outgoing.masked(found)]


def _dumps(value: object) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, separators=(",", ":"), ensure_ascii=False)


#: The events' wire form, one message each.
JSON = Rendering("json", _as_json)
