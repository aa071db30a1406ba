"""The state of a run in a few bytes, from which a replay continues: a page of it then reads no earlier event."""

from __future__ import annotations

import json
from dataclasses import astuple
from decimal import Decimal
from typing import Any
from uuid import UUID

from runs.queries.json_columns import to_json
from runs.queries.masking import mask_rows
from runs.queries.replaying.replay_states import OPEN
from timeline.events import EventType
from timeline.replay import TOKENS, Frame, OpenTurn, ToolCallState

#: Events that change earlier messages, which a summary does not have: the fold starts from the first event then.
NEEDS_MESSAGES = frozenset({EventType.RUN_ROLLED_BACK.value})
_PLAIN = ("seq", "status", "reason", "phase", "terminal", "step", "turns")


def summary_of(frame: Frame, max_bytes: int) -> bytes | None:
    """Return the state without its messages and ended calls. None if it is longer, or has a secret to mask."""
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
    """Return a state from which the fold continues, up to an event of `NEEDS_MESSAGES`."""
    # A summary of an earlier version has fewer kinds of tokens, and does not count the calls without a price.
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
            # A runner may report its start again.
            frame.calls_with_rows.add(call.name_in_step)
    return frame


def _call(call: ToolCallState) -> list[Any]:
    ref_id = None if call.ref_id is None else str(call.ref_id)
    return [ref_id, call.call_id, call.name, call.status, call.step, call.starts]
