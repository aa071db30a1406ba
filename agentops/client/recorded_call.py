"""A tool call of a recorded run."""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from agentops.client.recorder import RecordedRun


class RecordedCall:
    """A tool call: set `output` while it is open; an exception is its error. Works with `with` and `async with`.

    Where calls begin and end in callbacks, `begin` and `end` do the same.
    """

    def __init__(self, run: RecordedRun, name: str, arguments: Any, call_id: str | None) -> None:
        #: The ID of the call, by which the site knows it.
        self.id = call_id or f"call_{uuid.uuid4().hex}"
        #: What the tool returned.
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

    def end(self, output: Any = None, *, error: str | None = None, duration_ms: float | None = None) -> None:
        """Record the end of the call. `duration_ms`: by default, the time since `begin`."""
        if duration_ms is None:
            duration_ms = (time.monotonic() - self._began) * 1000
        status = "completed" if error is None else "error"
        payload = {"output": output, "error": error, "status": status, "duration_ms": duration_ms}
        self._run.record("tool.end", {"call_id": self.id, "tool_name": self._name, **payload})

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(self.output, error=self.error if error is None else _repr_of(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _repr_of(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception:
        # It is code of the recorded program, whose own exception has to be raised on.
        return type(error).__name__
