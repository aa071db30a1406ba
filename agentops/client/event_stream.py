"""Server-sent events, parsed from bytes, and the position of a reader in the log of a run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentops.client.connection import may_pass, pause_s
from agentops.client.errors import AgentopsError, StreamReset
from agentops.client.objects import Event

_LINE_END = re.compile(rb"\r\n|\n|\r")
#: Seconds until a reader reconnects, if the site does not specify it.
RETRY_S = 2.0


@dataclass(frozen=True)
class Frame:
    """One server-sent event. `id` is empty without one."""

    name: str
    data: str
    id: str


class FrameParser:
    """Parses bytes, split at any position, into frames. Only CR and LF end a line: texts contain other separators."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self.retry_s = RETRY_S

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that this chunk completes."""
        text = self._rest + chunk
        # A CR at the end may be the first half of a CRLF.
        held = text[-1:] if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        self._rest = rest + held
        for line in lines:
            frame = self._take(line.decode(errors="replace"))
            if frame is not None:
                yield frame

    def _take(self, line: str) -> Frame | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "retry" and value.isdecimal():
            self.retry_s = int(value) / 1000
        elif name in ("id", "event"):
            self._fields[name] = value
        return None

    def _dispatch(self) -> Frame | None:
        fields, data = self._fields, self._data
        self._fields, self._data = {}, []
        if not data and not fields:
            return None
        return Frame(fields.get("event", "message"), "\n".join(data), fields.get("id", ""))


class Position:
    """The position of a reader in a run, across all its connections: each event is yielded once, in order."""

    def __init__(self, after_seq: int, *, restart: bool, stop_on_pause: bool) -> None:
        self.seq = after_seq
        #: The ID as the site sent it: after a restore it contains a second number.
        self._last_id = ""
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
        if not may_pass(error) or now - self._failing_since > reconnect_s:
            raise error
        self._failures += 1
        return pause_s(self._failures)

    def events_in(self, frames: Iterable[Frame]) -> Iterator[Event]:
        """Yield the events after the reader's position. Raises `StreamReset`."""
        for frame in frames:
            event = self._take(frame)
            if event is not None:
                yield event
            if self.is_over:
                return

    def _take(self, frame: Frame) -> Event | None:
        if frame.name == "end":
            self.is_over = True
        elif frame.name == "stream-reset":
            self._reset(frame)
        elif frame.name == "message":
            return self._take_event(frame)
        return None

    def _take_event(self, frame: Frame) -> Event | None:
        event = Event.model_validate_json(frame.data)
        if event.seq <= self.seq:
            return None
        self.seq, self._last_id = event.seq, frame.id or str(event.seq)
        self.is_over = self._stop_on_pause and event.type == "run.paused"
        return event

    def _reset(self, frame: Frame) -> None:
        if not self._restart:
            raise StreamReset(int(json.loads(frame.data or "{}").get("last_seq", 0)))
        self.seq, self._last_id = 0, ""
