"""A tool call of a recorded run."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from agentops.client.recorder import RecordedRun


class RecordedCall:
    """A tool call: set `output` while it is open; an exception is its error. Works with `with` and `async with`."""

    def __init__(self, run: RecordedRun, name: str, arguments: Any, call_id: str | None) -> None:
        self.id = call_id or f"call_{uuid.uuid4().hex}"
        self.output: Any = None
        #: Makes the call a failed one without an exception.
        self.error: str | None = None
        self._run = run
        self._name = name
        self._arguments = arguments
        self._began = 0.0

    def begin(self, at: datetime | None = None) -> None:
        """Record the start of the call."""
        self._began = time.monotonic()
        self._run.record(
            "tool.start", {"call_id": self.id, "tool_name": self._name, "arguments": self._arguments}, at=at
        )

    def end(self, output: Any, *, error: str | None, duration_ms: float | None) -> None:
        """Record the end of the call."""
        status = "completed" if error is None else "error"
        payload = {"output": output, "error": error, "status": status, "duration_ms": duration_ms}
        self._run.record("tool.end", {"call_id": self.id, "tool_name": self._name, **payload})

    def __enter__(self) -> Self:
        self.begin(datetime.now(UTC))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        text = self.error if error is None else repr(error)
        self.end(self.output, error=text, duration_ms=(time.monotonic() - self._began) * 1000)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
