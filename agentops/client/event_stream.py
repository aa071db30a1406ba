"""The parser of server-sent events, and the position of a reader in the log of a run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentops.client.connection import is_temporary, pause_s
from agentops.client.errors import AgentopsError, StreamReset
from agentops.client.objects import Event

_LINE_END = re.compile(rb"\r\n|\n|\r")
#: Seconds until a reader reconnects, if the site does not specify it.
RETRY_S = 2.0


@dataclass(frozen=True)
class Frame:
    """A server-sent event. `id` is empty if the event has none."""

    name: str
    data: str
    id: str


class FrameParser:
    """Parses a stream of bytes into frames. Only CR and LF end a line, because texts may contain other separators."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self.retry_s = RETRY_S

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that this chunk completes. The bytes may be split at any position."""
        text = self._rest + chunk
        # A CR at the end may be the first half of a CRLF.
        held = text[-1:] if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        self._rest = rest + held
        for line in lines:
            frame = self._read_line(line.decode(errors="replace"))
            if frame is not None:
                yield frame

    def _read_line(self, line: str) -> Frame | None:
        """Store the field of a line. Return the frame if the line is empty, which ends the frame."""
        if not line:
            return self._end_frame()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "retry" and value.isdecimal():
            self.retry_s = int(value) / 1000
        elif name in ("id", "event"):
            self._fields[name] = value
        return None

    def _end_frame(self) -> Frame | None:
        fields, data = self._fields, self._data
        self._fields, self._data = {}, []
        if not data and not fields:
            return None
        return Frame(fields.get("event", "message"), "\n".join(data), fields.get("id", ""))


class Position:
    """The position of a reader in the log of a run, across all connections. Each event is yielded once, in order."""

    def __init__(self, after_seq: int, *, restart: bool, stop_on_pause: bool) -> None:
        self.seq = after_seq
        #: The ID of the last event as the site sent it. After a restore of the database it contains a second number.
        self._last_id = ""
        #: Whether the reader has all events that it asked for.
        self.is_over = False
        self._restart = restart
        self._stop_on_pause = stop_on_pause
        self._failures = 0
        self._failing_since = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the next connection."""
        return {"Last-Event-ID": self._last_id} if self._last_id else {}

    @property
    def params(self) -> dict[str, str]:
        """Return the parameters of the next connection."""
        return {"afterSeq": str(self.seq)}

    def connected(self) -> None:
        """Record that the site opened a stream."""
        self._failures = 0

    def pause_after(self, error: AgentopsError, reconnect_s: float) -> float:
        """Return the seconds until the next attempt. Raises a permanent error, or one that has lasted `reconnect_s`."""
        now = time.monotonic()
        if not self._failures:
            self._failing_since = now
        if not is_temporary(error) or now - self._failing_since > reconnect_s:
            raise error
        self._failures += 1
        return pause_s(self._failures)

    def events_in(self, frames: Iterable[Frame]) -> Iterator[Event]:
        """Yield the events after the reader's position, and advance it. Raises `StreamReset`."""
        for frame in frames:
            event = self._read(frame)
            if event is not None:
                yield event
            if self.is_over:
                return

    def _read(self, frame: Frame) -> Event | None:
        """Return the event of a frame; None if it has none, or an event that was already yielded."""
        if frame.name == "end":
            self.is_over = True
        elif frame.name == "stream-reset":
            if not self._restart:
                raise StreamReset(int(json.loads(frame.data or "{}").get("last_seq", 0)))
            self.seq, self._last_id = 0, ""
        if frame.name != "message":
            return None
        event = Event.model_validate_json(frame.data)
        if event.seq <= self.seq:
            return None
        self.seq, self._last_id = event.seq, frame.id or str(event.seq)
        self.is_over = self._stop_on_pause and event.type == "run.paused"
        return event
