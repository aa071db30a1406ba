"""Rebuilds the state of a run from its events: the state at seq N is fold(events up to N).

Used by the replay of a run (page, API, command) and by check_runs. The functions have no side effects except on the
`Frame`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol
from uuid import UUID

from timeline.events import EventType, kind_of, types_that
from timeline.events.base import EventKind
from timeline.reasons import ABANDONED

#: The kinds of tokens, in the order of stored summaries (runs.queries.replay_states). Add new kinds at the end.
TOKENS = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens"),
    "cache_write_1h_tokens",
)


class FoldedEvent(Protocol):
    """The attributes of an event that the fold reads."""

    @property
    def seq(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def ref_id(self) -> UUID | None: ...
    @property
    def payload(self) -> Mapping[str, Any]: ...
    @property
    def late(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class MessageState:
    """A message of the conversation."""

    position: int | None
    role: str
    ref_id: UUID | None
    step: int | None
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class ToolCallState:
    """A tool call that has at least one event. Planned calls have none."""

    ref_id: UUID | None
    call_id: str
    name: str
    status: str
    step: int | None
    starts: int = 0

    @property
    def key(self) -> UUID | str:
        """The ID of the call's row, or `name_in_step` if it has no row."""
        return self.ref_id or self.name_in_step

    @property
    def name_in_step(self) -> str:
        """The step and the call ID, by which events that name no row identify the call."""
        return f"{self.step}/{self.call_id}"


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A model call that has started and not ended."""

    step: int | None
    attempt: int
    #: The seq of its start.
    since: int


@dataclass(slots=True)
class Frame:
    """The state after event `seq`. `advance` changes it in place: a copy per event would take quadratic time."""

    seq: int = 0
    status: str = ""
    #: The reason of the status, or empty.
    reason: str = ""
    #: The phase of the last event that changed the status.
    phase: str = ""
    terminal: bool = False
    #: The number of the last completed step, or 0.
    step: int = 0
    #: The number of model responses.
    turns: int = 0
    messages: list[MessageState] = field(default_factory=list)
    #: The number of messages before `messages`: a state that continues from a summary lacks them.
    omitted_messages: int = 0
    #: The calls with events, by `ToolCallState.key`.
    calls: dict[UUID | str, ToolCallState] = field(default_factory=dict)
    #: `ToolCallState.name_in_step` of the calls whose events name a row.
    calls_with_rows: set[str] = field(default_factory=set)
    #: The number of requested tool calls by step.
    requested_calls: Counter[int | None] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    #: None if no turn has a known cost.
    cost_usd: Decimal | None = None
    #: The number of model calls without a known cost. The cost does not include them.
    unpriced_calls: int = 0
    open_turn: OpenTurn | None = None
    #: The number of commands by idempotency key and type.
    commands: Counter[tuple[str | None, str]] = field(default_factory=Counter)

    @property
    def message_count(self) -> int:
        """The number of messages, including messages that were rolled back."""
        return self.omitted_messages + len(self.messages)


def fold(events: Iterable[FoldedEvent], frame: Frame | None = None) -> Frame:
    """Return the state after `events`, starting from `frame`, which is changed, or from the beginning."""
    frame = Frame() if frame is None else frame
    for event in events:
        advance(frame, event)
    return frame


def advance(frame: Frame, event: FoldedEvent) -> None:
    """Apply the next event. Late events, which follow the end of the run, only change `seq`.

    The exception is `llm.usage.moved`, which changes the totals.
    """
    frame.seq = event.seq
    if event.late and event.type != EventType.LLM_USAGE_MOVED:
        return
    kind = kind_of(event.type)
    if kind.status:
        _set_status(frame, event, kind)
    fold_one = _FOLDS.get(event.type)
    if fold_one is not None:
        fold_one(frame, event)


Fold = Callable[[Frame, FoldedEvent], None]


def _set_status(frame: Frame, event: FoldedEvent, kind: EventKind) -> None:
    payload = event.payload
    frame.status, frame.phase, frame.terminal = kind.status, event.phase, kind.is_terminal
    frame.reason = str(payload.get("reason") or payload.get("error_type") or "")
    _count_totals(frame, payload)


def _count_totals(frame: Frame, payload: Mapping[str, Any]) -> None:
    """Count the usage in a status event: external runners may report that of the whole run, besides that per turn.

    Its tokens are added; its cost replaces the sum.
    """
    usage = payload.get("usage") or {}
    for name in TOKENS:
        frame.tokens[name] += usage.get(name) or 0
    cost = _money(payload.get("cost_usd"))
    if cost is not None:
        frame.cost_usd, frame.unpriced_calls = cost, 0


def _phase(frame: Frame, event: FoldedEvent) -> None:
    frame.status, frame.phase, frame.terminal = str(event.payload["status"]), event.phase, False
    # For "running", the reason describes the event, not the status.
    frame.reason = "" if frame.status == "running" else str(event.payload.get("reason") or "")


def _waiting(frame: Frame, event: FoldedEvent) -> None:
    if frame.reason == "unknown_tool":
        # The event does not name the call. The call has started and not ended.
        _lose_running_calls(frame)


def _stopped(frame: Frame, event: FoldedEvent) -> None:
    if frame.reason == ABANDONED:
        # Its calls stay open, since their results may come later.
        _lose_running_calls(frame)


def _lose_running_calls(frame: Frame) -> None:
    for key, call in frame.calls.items():
        if call.status == "running":
            frame.calls[key] = replace(call, status="unknown")


def _rolled_back(frame: Frame, event: FoldedEvent) -> None:
    positions = set(event.payload.get("positions") or ())
    frame.messages = [replace(m, rolled_back=m.rolled_back or m.position in positions) for m in frame.messages]
    answers = [m for m in frame.messages if m.role == "assistant" and not m.rolled_back]
    frame.turns, frame.step = len(answers), max((m.step or 0 for m in answers), default=0)


def _message(frame: Frame, event: FoldedEvent) -> None:
    role = str(event.payload["role"])
    frame.messages.append(MessageState(event.payload.get("position"), role, event.ref_id, event.step))
    if role == "assistant":
        frame.turns += 1
        frame.step = max(frame.step, event.step or 0)


def _turn_start(frame: Frame, event: FoldedEvent) -> None:
    frame.open_turn = OpenTurn(event.step, event.payload.get("attempt") or 0, event.seq)


def _turn_abandoned(frame: Frame, event: FoldedEvent) -> None:
    frame.open_turn = None
    if event.payload.get("usage"):  # otherwise the provider refused the call, and bills nothing
        _count_usage(frame, event.payload)


def _turn_end(frame: Frame, event: FoldedEvent) -> None:
    frame.open_turn = None
    if not event.payload.get("repeated"):
        _count_usage(frame, event.payload)
    calls = event.payload.get("tool_calls") or 0
    frame.requested_calls[event.step] += calls if isinstance(calls, int) else len(calls)


def _usage(frame: Frame, event: FoldedEvent) -> None:
    _count_usage(frame, event.payload)


def _usage_moved(frame: Frame, event: FoldedEvent) -> None:
    frame.tokens = Counter({name: event.payload.get(name) or 0 for name in TOKENS})
    frame.cost_usd = _money(event.payload.get("cost_usd"))


def _count_usage(frame: Frame, payload: Mapping[str, Any]) -> None:
    for name in TOKENS:
        frame.tokens[name] += payload.get(name) or 0
    cost = _money(payload.get("cost_usd"))
    if cost is not None:
        frame.cost_usd = (frame.cost_usd or Decimal(0)) + cost
    else:
        frame.unpriced_calls += 1


def _money(value: Any) -> Decimal | None:
    """Return a cost as a decimal, or None for a missing or invalid value of an external runner."""
    try:
        amount = None if value is None else Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        return None
    return amount if amount is None or amount.is_finite() else None


def _tool_start(frame: Frame, event: FoldedEvent) -> None:
    if not _is_repeat(frame, event):
        call = _call(frame, event)
        frame.calls[_key(event)] = replace(call, status="running", starts=call.starts + 1)


def _tool_end(frame: Frame, event: FoldedEvent) -> None:
    if _is_repeat(frame, event):
        return
    status = event.payload.get("status") or ("error" if event.payload.get("error") else "completed")
    frame.calls[_key(event)] = replace(_call(frame, event), status=str(status))


def _is_repeat(frame: Frame, event: FoldedEvent) -> bool:
    """Return whether a runner reports the start or end of a call again: the event names no row, but the call has one.

    Remembers the calls whose events name a row.
    """
    name = _name(event)
    if event.ref_id is not None:
        frame.calls_with_rows.add(name)
        return False
    return name in frame.calls_with_rows


def _key(event: FoldedEvent) -> UUID | str:
    """Return `ToolCallState.key` of the call of an event; likewise `_name` returns `name_in_step`."""
    return event.ref_id or _name(event)


def _name(event: FoldedEvent) -> str:
    return f"{event.step}/{event.payload['call_id']}"


def _call(frame: Frame, event: FoldedEvent) -> ToolCallState:
    """Return the call of an event: the known one, or a new one in status `planned`."""
    call = frame.calls.get(_key(event))
    if call is not None:
        return call
    name = str(event.payload.get("tool_name") or "")
    return ToolCallState(event.ref_id, str(event.payload["call_id"]), name, "planned", event.step)


def _command(frame: Frame, event: FoldedEvent) -> None:
    frame.commands[event.payload.get("key"), str(event.payload["type"])] += 1


_FOLDS: dict[str, Fold] = {
    EventType.RUN_PHASE: _phase,
    EventType.RUN_WAITING: _waiting,
    EventType.RUN_STOPPED: _stopped,
    EventType.RUN_ROLLED_BACK: _rolled_back,
    EventType.MESSAGE_ADDED: _message,
    EventType.LLM_TURN_START: _turn_start,
    EventType.LLM_TURN_END: _turn_end,
    EventType.LLM_TURN_ABANDONED: _turn_abandoned,
    EventType.LLM_USAGE: _usage,
    EventType.LLM_USAGE_MOVED: _usage_moved,
    EventType.TOOL_START: _tool_start,
    EventType.TOOL_END: _tool_end,
    EventType.COMMAND_RECEIVED: _command,
}
#: The types that change the state. Other events only change `seq`; for late events see `advance`.
FOLDED_TYPES = types_that(lambda kind: kind.status) | frozenset(_FOLDS)
