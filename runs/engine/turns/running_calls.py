"""Tool calls while they run: calls that run ahead, output that is logged while a tool runs, and late output.

A call runs ahead if it runs at the same time as an earlier call of its turn. The results are still committed in order.

Output is late if the run was taken over, stopped or ended before, or the call timed out. The call then has another
result or an unknown outcome, and the event with the late output helps the person who resolves that outcome.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from django.db import Error, connections, transaction

from agentops.base.redaction.partial_texts import Stream
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import storable
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunToolCall
from runs.tools.base import ToolResult
from runs.tools.call_limits import StartedTool
from runs.tools.output import Output
from timeline import log
from timeline.display import preview
from timeline.events.tool import ToolOutput
from timeline.log import Entry
from timeline.models import LeaseLost, LogNotFound, Source

#: Maximum characters of an attempt that are logged while it runs. The result of the call contains the whole output.
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
        """Add a text. Drops it after `close`, and beyond `MAX_LIVE` characters."""
        with self._lock:
            if self._is_closed or not self._left or not text:
                return
            kept = str(text)[: self._left]
            self._left -= len(kept)
            name = storable(str(stream))[0]
            redacting_stream = self._streams.setdefault(name, Stream(self._redactor))
            self._ready.append((name, redacting_stream.feed(kept)))
            if not self._left:
                self._ready.append((name, redacting_stream.flush() + CUT))

    def take(self) -> list[Entry]:
        """Return the events for the text since the last `take`, without text that may be the start of a secret."""
        with self._lock:
            ready, self._ready = self._ready, []
        return list(self._entries(ready))

    def close(self) -> list[Entry]:
        """End the output, and return the events for the remaining text."""
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


@dataclass(frozen=True)
class CallAhead:
    """A call that runs ahead."""

    tool: StartedTool
    output: LiveOutput


@dataclass
class CallsAhead:
    """The calls of the last answer that run ahead, by the ID of their row."""

    _calls: dict[UUID, CallAhead] = field(default_factory=dict)

    def __contains__(self, pk: UUID) -> bool:
        return pk in self._calls

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, pk: UUID, call: CallAhead) -> None:
        self._calls[pk] = call

    def pop(self, pk: UUID) -> CallAhead | None:
        return self._calls.pop(pk, None)

    def elapsed_s(self, pk: UUID) -> float:
        """Return the seconds that the tool of a call has run; 0 if it does not run ahead."""
        call = self._calls.get(pk)
        return 0.0 if call is None else call.tool.elapsed_s()

    def output(self) -> list[Entry]:
        """Return the events for the new output of these calls."""
        return [entry for call in self._calls.values() for entry in call.output.take()]

    def abandon(self) -> None:
        """Cancel the tools: their results are no longer needed. Another worker runs the calls again."""
        for call in self._calls.values():
            call.tool.abandon()
        self._calls.clear()


logger = logging.getLogger(__name__)


def log_late_output(call: AgentRunToolCall, output: Output) -> None:
    """Append late output to the log. Database errors are only logged, because nothing depends on the output."""
    try:
        _append(call, preview(_text_of(output))[0])
    except (Error, LogNotFound, LeaseLost) as error:
        logger.warning("a late tool output is lost: %s", type(error).__name__, extra={"run_id": str(call.run_id)})


def log_late_result(call: AgentRunToolCall, result: ToolResult) -> None:
    """Call `log_late_output` in a tool's thread, and close the thread's database connections."""
    try:
        log_late_output(call, result.output)
    finally:
        connections.close_all()


def _append(call: AgentRunToolCall, text: str) -> None:
    """Append the event without an epoch, because the lease may be lost."""
    with transaction.atomic():
        # Locked, so that the run cannot end between this query and the event, which depends on the run's status.
        run = AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=call.run_id).first()
        if run is None:
            return
        payload = ToolOutput(call_id=call.call_id, text=text, late=True)
        entry = Entry(payload, phase=PHASES[run.state], step=call.step_number, ref_id=call.pk, late=run.state.terminal)
        log.append(run.pk, [entry], source=Source.WORKER)


def _text_of(output: Output) -> str:
    """Return the texts of an output as one, without its media."""
    return output if isinstance(output, str) else "\n".join(item for item in output if isinstance(item, str))
