"""Tools that answer from a recording instead of doing anything: fixtures, demos, the benchmark.
May import libraries and `runs.tools.base`; who reads the recording is passed in as a function."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pydantic_ai.tools import ToolDefinition

from runs.tools.base import Arguments, Effect, OutcomeUnknown, Tool, ToolContext, ToolFailed, ToolResult
from runs.tools.output import Output

#: How long a paced call may sleep before it looks whether anyone still waits for it.
NAP_S = 0.05


class RecordedResult(Protocol):
    @property
    def output(self) -> Output: ...

    @property
    def error(self) -> bool: ...

    @property
    def duration_ms(self) -> int | None: ...

    @property
    def unknown(self) -> bool:
        """The recording itself ends before the outcome was known."""
        ...


#: By the id of the call and the number of the model call that asked: ids come again in later turns.
Lookup = Callable[[str, int], RecordedResult | None]


class RecordedTools:
    """Answers any tool name by the id of the call. Pace 0 answers at once, 1 takes as long as it took, 2 half."""

    def __init__(self, lookup: Lookup, *, pace: float = 0, settings: Mapping[str, Any] | None = None) -> None:
        self._lookup = lookup
        self._pace = pace
        self._effect = Effect((settings or {}).get("recorded_effect", Effect.READ))
        self._tools: dict[str, Tool] = {}

    def get(self, name: str) -> Tool | None:
        if name not in self._tools:
            self._tools[name] = self._make(name)
        return self._tools[name]

    def definitions(self) -> list[ToolDefinition]:
        """None: who plays a recording has no model that would read them."""
        return []

    def _make(self, name: str) -> Tool:
        return Tool(
            name=name,
            description="Answers from a recording.",
            parameters_schema={"type": "object"},
            execute=self._answer,
            effect=self._effect,
            timeout_s=None,
            inline=self._pace <= 0,
        )

    def _answer(self, ctx: ToolContext, _: Arguments) -> ToolResult:
        found = self._lookup(ctx.call_id, ctx.model_call)
        if found is None:
            raise ToolFailed("no_recording", f"The recording has no result for call {ctx.call_id!r}.")
        if self._pace > 0 and found.duration_ms:
            _sleep(found.duration_ms / 1000 / self._pace, ctx.cancelled)
        if found.unknown:
            raise OutcomeUnknown(f"The recording ends before call {ctx.call_id!r} did.")
        # However often it is played, a recording answers the same.
        return ToolResult(found.output, is_error=found.error, retryable=not found.error, duration_ms=found.duration_ms)


def _sleep(seconds: float, cancelled: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not cancelled():
        time.sleep(min(left, NAP_S))
