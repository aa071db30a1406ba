"""The turns of a Claude Agent SDK session: its messages, and the result that the SDK reports after each turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from runs.external.event_input import IncomingEvent
from runs.external.foreign_payloads import read_cost
from runs.external.importers.answer_events import event_id, identifier_or_none
from runs.external.importers.claude_conversation import MESSAGES, ClaudeConversation, ConversationLine
from runs.statuses import WaitReason
from timeline.events import EventType, Payload
from timeline.events.notice import Error
from timeline.events.run import RunCompleted, RunFailed, RunPhase, RunWaiting


class SdkTurns(ClaudeConversation):
    """The conversation of a session. After the result of a turn, the session waits for its user or has ended."""

    def __init__(
        self,
        run_ref: str,
        lines: Sequence[ConversationLine],
        usages: Mapping[str, Mapping[str, Any]],
        *,
        may_continue: bool,
    ) -> None:
        """Create a conversation. `may_continue`: the last result does not end the session."""
        super().__init__(run_ref, lines, usages)
        self._results = [line for line in lines if line.kind == "result"]
        self._costs = _total_costs(self._results)
        others = [line for line in lines if line.kind in (*MESSAGES, "result")]
        ends = not may_continue and bool(others) and others[-1].kind == "result"
        #: The result that ends the session, if any.
        self._last = others[-1] if ends else None

    def events(self) -> Iterator[IncomingEvent]:
        """Yield the events of all turns, without the end of the session."""
        is_waiting = False
        for event in super().events():
            if is_waiting and event.type != EventType.RUN_WAITING:
                phase = RunPhase(status="running", reason="continued")
                yield self._event(phase, f"continued:{event.event_id}", event)
            is_waiting = event.type == EventType.RUN_WAITING
            yield event

    def end(self) -> Iterator[IncomingEvent]:
        """Yield the end of the session, if it has ended."""
        line = self._last
        if line is None:
            return
        text, usage, cost = _text(line), line.data.get("usage"), self._costs[line.line_id]
        # The result has only the usage of the last turn.
        totals = dict(usage) if isinstance(usage, Mapping) and len(self._results) == 1 else None
        payload: Payload
        if _has_failed(line):
            payload = RunFailed(error_type=_error_type(line), error=text, usage=totals, cost_usd=cost)
        else:
            output = line.data.get("structured_output")
            payload = RunCompleted(result=text, structured_output=output, usage=totals, cost_usd=cost)
        yield self._event(payload, f"result:{line.line_id}", line)

    def other(self, line: ConversationLine) -> Iterator[IncomingEvent]:
        """Yield the events of a result that does not end the session."""
        if line.kind != "result" or line is self._last:
            return
        has_failed = _has_failed(line)
        if has_failed:
            yield self._event(Error(error_type=_error_type(line), error=_text(line)), f"error:{line.line_id}", line)
        waiting = RunWaiting(
            reason=WaitReason.INPUT,
            result=None if has_failed else _text(line),
            structured_output=None if has_failed else line.data.get("structured_output"),
            cost_usd=self._costs[line.line_id],
        )
        yield self._event(waiting, f"result:{line.line_id}", line)

    def _event(self, payload: Payload, name: str, source: ConversationLine | IncomingEvent) -> IncomingEvent:
        at = source.at if isinstance(source, ConversationLine) else source.ts
        return IncomingEvent.of(self.run_ref, payload, event_id(name), at)


def _total_costs(results: Sequence[ConversationLine]) -> dict[str, str | None]:
    """Return the session's cost in US dollars up to each result, by the ID of the result's line.

    Each result has the cost since the program started. If the cost decreases, the program was restarted.
    """
    costs: dict[str, str | None] = {}
    before_restart, last = Decimal(0), Decimal(0)
    for line in results:
        cost = read_cost(line.data.get("total_cost_usd"))
        if cost is not None:
            before_restart += last if cost < last else 0
            last = cost
        costs[line.line_id] = None if cost is None else f"{before_restart + cost:f}"
    return costs


def _has_failed(line: ConversationLine) -> bool:
    return line.data.get("is_error") is True or line.data.get("subtype") != "success"


def _error_type(line: ConversationLine) -> str:
    subtype = identifier_or_none(line.data.get("subtype"))
    return "error" if subtype in (None, "success") else subtype


def _text(line: ConversationLine) -> str | None:
    text = line.data.get("result")
    return text if isinstance(text, str) else None
