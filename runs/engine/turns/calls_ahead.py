"""Tool calls that run at the same time as an earlier call of their turn. Their results are committed in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from runs.engine.turns.live_output import LiveOutput
from runs.tools.timed_call import StartedTool
from timeline.log import Entry


@dataclass(frozen=True)
class CallAhead:
    """A call whose tool already runs."""

    tool: StartedTool
    output: LiveOutput


@dataclass
class CallsAhead:
    """The calls of the last answer that run before it is their turn, by the ID of their row."""

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
        """Cancel the tools, whose results are no longer awaited. Another worker runs the calls again."""
        for call in self._calls.values():
            call.tool.abandon()
        self._calls.clear()
