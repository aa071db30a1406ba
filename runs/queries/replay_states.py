"""The states of a run during the replay of its log: after one event, and after each event of a batch. Read-only.

The state after an event is the fold of the log up to the event. Only events that change the state are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import datetime
from decimal import Decimal
from itertools import chain, pairwise, repeat
from typing import Any
from uuid import UUID

from django.db.models import Q

from agentops.base import database_clock
from runs.queries.json_columns import mask_rows, to_json
from runs.statuses import ToolStatus
from timeline import log
from timeline.display import clip
from timeline.events import EventType
from timeline.models import Event
from timeline.replay import FOLDED_TYPES, TOKENS, FoldedEvent, Frame, MessageState, OpenTurn, ToolCallState, advance

#: Events held in memory at a time.
CHUNK = 2000
#: Maximum messages of a snapshot. Its `message_count` is not limited.
MAX_MESSAGES = 200
PREVIEW_BYTES = 500
#: Maximum seconds of a pause between two events. Longer pauses are shortened.
MAX_PAUSE_S = 5.0
#: Statuses of calls that have started and have no result.
OPEN = frozenset({ToolStatus.RUNNING.value, ToolStatus.UNKNOWN.value})
_FIELDS = ("seq", "type", "phase", "step", "ref_id", "payload", "late")


@dataclass(frozen=True, slots=True)
class ReplayState:
    """The state of a run after event `seq`."""

    seq: int
    status: str
    reason: str
    step: int
    node_id: str
    open_calls: tuple[ToolCallState, ...]
    #: Whether a model call has started and not ended.
    has_open_turn: bool
    tokens: Mapping[str, int]
    cost_usd: Decimal | None
    unpriced_calls: int
    #: Number of messages, including those removed by a rollback.
    message_count: int

    def as_json(self) -> dict[str, Any]:
        """Return the state in its wire format."""
        return {
            "seq": self.seq,
            "status": self.status,
            "status_reason": self.reason,
            "step": self.step,
            "nodeId": self.node_id or None,
            "open_model_call": self.has_open_turn,
            "open_tool_calls": [_call_json(call) for call in self.open_calls],
            **self.tokens,
            "cost_usd": None if self.cost_usd is None else f"{self.cost_usd:.8f}",
            "unpriced_calls": self.unpriced_calls,
            "message_count": self.message_count,
        }


@dataclass(frozen=True, slots=True)
class ReplayMessage:
    """A message of a snapshot, with a preview of its text."""

    message: MessageState
    preview: str

    @property
    def role(self) -> str:
        """Return the role in words."""
        return self.message.role.replace("_", " ")

    def as_json(self) -> dict[str, Any]:
        """Return the message in its wire format."""
        return {
            "id": None if self.message.ref_id is None else str(self.message.ref_id),
            "position": self.message.position,
            "role": self.message.role,
            "step_number": self.message.step,
            "rolled_back": self.message.rolled_back,
            "preview": self.preview,
        }


def frame_at(log_id: UUID, seq: int) -> Frame:
    """Return the state after event `seq`, which must exist or be 0, as the fold of the log up to it."""
    # Of late events, only this type changes the state.
    events = log.events_of(log_id).filter(seq__lte=seq, type__in=FOLDED_TYPES)
    events = events.filter(Q(late=False) | Q(type=EventType.LLM_USAGE_MOVED))
    frame = Frame()
    for event in events.values_list(*_FIELDS, named=True).iterator(chunk_size=CHUNK):
        _advance(frame, event)
    frame.seq = seq
    return frame


def snapshot_at(log_id: UUID, seq: int) -> tuple[ReplayState, list[ReplayMessage]]:
    """Return the state after event `seq`, which must exist or be 0, and its newest messages, oldest first."""
    frame = frame_at(log_id, seq)
    node_id = log.events_of(log_id).filter(seq=seq).values_list("node_id", flat=True).first() or ""
    return _state(frame, node_id), _messages(log_id, frame)


def continued(frame: Frame, events: list[Event]) -> Iterator[tuple[Event, ReplayState]]:
    """Yield each event with the state after it. `frame` is the state before the first event; it is changed."""
    open_calls = _open_calls(frame)
    for event in events:
        _advance(frame, event)
        if event.type in FOLDED_TYPES:
            open_calls = _open_calls(frame)
        yield event, _state(frame, event.node_id, open_calls)


def pauses_s(times: list[datetime]) -> list[float]:
    """Return the seconds between successive events, each from 0 to MAX_PAUSE_S: clocks of writers may go back."""
    return [min(database_clock.seconds_between(*pair), MAX_PAUSE_S) for pair in pairwise(times)]


def _advance(frame: Frame, event: FoldedEvent) -> None:
    """Apply the next event. An event stored under older rules that can no longer be read only changes `seq`."""
    try:
        advance(frame, event)
    except (KeyError, TypeError, AttributeError, ValueError):
        frame.seq = event.seq


def _state(frame: Frame, node_id: str, open_calls: tuple[ToolCallState, ...] | None = None) -> ReplayState:
    """Return the state of a frame. `open_calls`: those of the frame, if the caller knows them already."""
    return ReplayState(
        seq=frame.seq,
        status=frame.status,
        reason=frame.reason,
        step=frame.step,
        node_id=node_id,
        open_calls=_open_calls(frame) if open_calls is None else open_calls,
        has_open_turn=frame.open_turn is not None,
        tokens={name: frame.tokens[name] for name in TOKENS},
        cost_usd=frame.cost_usd,
        unpriced_calls=frame.unpriced_calls,
        message_count=frame.message_count,
    )


def _open_calls(frame: Frame) -> tuple[ToolCallState, ...]:
    return tuple(call for call in frame.calls.values() if call.status in OPEN)


def _messages(log_id: UUID, frame: Frame) -> list[ReplayMessage]:
    """Return the newest messages, oldest first. The fold keeps no texts, so previews are read from the events."""
    newest = frame.messages[-MAX_MESSAGES:]
    added = log.events_of(log_id).filter(seq__lte=frame.seq, type=EventType.MESSAGE_ADDED, late=False).order_by("-seq")
    payloads = added.values_list("payload", flat=True)[: len(newest)]
    # The fold leaves out unreadable events, too.
    previews = [_preview(payload) for payload in payloads if isinstance(payload, dict) and "role" in payload]
    pairs = zip(reversed(newest), chain(previews, repeat("")), strict=False)
    return [ReplayMessage(message, preview) for message, preview in pairs][::-1]


def _preview(payload: Mapping[str, Any]) -> str:
    """Return the start of a message. External runners send its content instead of a preview."""
    text = payload.get("preview") or payload.get("content") or ""
    return clip(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False), PREVIEW_BYTES).text


def _call_json(call: ToolCallState) -> dict[str, Any]:
    return {
        "id": None if call.ref_id is None else str(call.ref_id),
        "call_id": call.call_id,
        "tool_name": call.name,
        "status": call.status,
        "step_number": call.step,
    }


# --- Stored summaries ---

#: Events that change earlier messages. A summary has no messages, so a fold over such events cannot start from it.
NEEDS_MESSAGES = frozenset({EventType.RUN_ROLLED_BACK.value})
#: Attributes of a frame that a summary contains unchanged.
_PLAIN = ("seq", "status", "reason", "phase", "terminal", "step", "turns")


def summary_of(frame: Frame, max_bytes: int) -> bytes | None:
    """Return a state as JSON, without its messages and ended calls.

    None if the JSON has more than `max_bytes`, or contains a secret that would have to be masked.
    """
    content = [
        [getattr(frame, name) for name in _PLAIN],
        frame.message_count,
        [frame.tokens[name] for name in TOKENS],
        None if frame.cost_usd is None else str(frame.cost_usd),
        None if frame.open_turn is None else astuple(frame.open_turn),
        [_call(call) for call in frame.calls.values() if call.status in OPEN],
        frame.unpriced_calls,
    ]
    text = to_json(content)
    if len(text.encode()) > max_bytes or mask_rows([text]) != [text]:
        return None
    return text.encode()


def frame_from(summary: bytes) -> Frame:
    """Return the state of a summary. The fold continues from it, except over events of `NEEDS_MESSAGES`."""
    # A summary of an earlier version has fewer kinds of tokens, and no number of unpriced calls.
    plain, message_count, tokens, cost, open_turn, calls, *unpriced = json.loads(summary)
    frame = Frame(**dict(zip(_PLAIN, plain, strict=True)), omitted_messages=message_count)
    frame.tokens.update(dict(zip(TOKENS, tokens, strict=False)))
    frame.unpriced_calls = sum(unpriced)
    frame.cost_usd = None if cost is None else Decimal(cost)
    frame.open_turn = None if open_turn is None else OpenTurn(*open_turn)
    for ref_id, *columns in calls:
        call = ToolCallState(None if ref_id is None else UUID(ref_id), *columns)
        frame.calls[call.key] = call
        if ref_id is not None:
            # So that a repeated report of the call's start is recognised.
            frame.calls_with_rows.add(call.name_in_step)
    return frame


def _call(call: ToolCallState) -> list[Any]:
    ref_id = None if call.ref_id is None else str(call.ref_id)
    return [ref_id, call.call_id, call.name, call.status, call.step, call.starts]
