"""The output of a running tool on its way into the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import groupby

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import storable
from agentops.base.redaction.text_stream import Stream
from runs.models import AgentRunToolCall
from timeline.events.tool import ToolOutput
from timeline.log import Entry

#: Characters of one attempt that are logged while it runs. The result of the call contains the whole output.
MAX_LIVE = 64 * 1024
CUT = "\n… [the rest is not shown while the tool runs]"


class LiveOutput:
    """Collects the output of a running tool, redacted. The tool's thread writes; the worker's thread takes."""

    def __init__(self, call: AgentRunToolCall) -> None:
        self._call = call
        # Fixed here: a tool runs in a separate thread, which has no project in scope.
        self._redactor = REDACTOR.fixed()
        self._streams: dict[str, Stream] = {}
        self._ready: list[tuple[str, str]] = []
        self._left = MAX_LIVE
        self._is_closed = False
        self._lock = threading.Lock()

    def write(self, text: str, stream: str = "stdout") -> None:
        """Add a text. After `close`, and beyond `MAX_LIVE` characters, it is dropped."""
        with self._lock:
            if self._is_closed or not self._left or not text:
                return
            shown = str(text)[: self._left]
            self._left -= len(shown)
            name = storable(str(stream))[0]
            redacted = self._streams.setdefault(name, Stream(self._redactor))
            self._ready.append((name, redacted.feed(shown)))
            if not self._left:
                self._ready.append((name, redacted.flush() + CUT))

    def take(self) -> list[Entry]:
        """Return the events for the complete text. Text that may become a secret is held back."""
        with self._lock:
            ready, self._ready = self._ready, []
        return list(self._entries(ready))

    def close(self) -> list[Entry]:
        """End the output, and return the events for the rest."""
        with self._lock:
            self._is_closed = True
            if self._left:
                self._ready += [(name, stream.flush()) for name, stream in self._streams.items()]
        return self.take()

    def _entries(self, ready: list[tuple[str, str]]) -> Iterator[Entry]:
        for stream, pieces in groupby(ready, key=lambda piece: piece[0]):
            if text := "".join(piece for _, piece in pieces):
                payload = ToolOutput(call_id=self._call.call_id, stream=stream, text=text)
                # Redacted as one text: redacting the pieces again could change it.
                yield Entry(payload, step=self._call.step_number, ref_id=self._call.pk, clean=True)
