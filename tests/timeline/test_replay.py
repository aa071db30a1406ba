"""Replay of a log: the effect of each event on the state, and that replay can stop and continue at any event."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.factories import drive, make_agent, make_run
from timeline import log
from timeline.events import EVENT_TYPES
from timeline.replay import Frame, MessageState, OpenTurn, ToolCallState, advance, fold

CALL, MESSAGE = uuid4(), uuid4()


@dataclass
class Said:
    """An event as replay sees it."""

    type: str
    payload: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    ref_id: UUID | None = None
    phase: str = "running"
    late: bool = False
    seq: int = 0


def told(*events: Said) -> Frame:
    return fold(numbered(*events))


def numbered(*events: Said) -> Iterator[Said]:
    for seq, event in enumerate(events, start=1):
        event.seq = seq
        yield event


CREATED = Said("run.created", phase="queued")


@pytest.mark.parametrize(
    ("event", "status", "reason", "terminal"),
    [
        (CREATED, "queued", "", False),
        (Said("run.started", {"worker": "a", "epoch": 1}), "running", "", False),
        (Said("run.recovered", {"cause": "lease_expired"}), "running", "", False),
        (Said("run.phase", {"status": "queued", "reason": "slice_over"}), "queued", "slice_over", False),
        (Said("run.phase", {"status": "running", "reason": "continued"}), "running", "", False),
        (Said("run.waiting", {"reason": "cooldown"}), "waiting", "cooldown", False),
        (Said("run.paused", {"reason": "max_steps"}), "paused", "max_steps", False),
        (Said("run.resumed", {"run_id": "x"}), "resumed", "", True),
        (Said("run.completed"), "completed", "", True),
        (Said("run.failed", {"error_type": "timeout"}), "failed", "timeout", True),
        (Said("run.stopped", {"reason": "operator"}), "stopped", "operator", True),
    ],
    ids=lambda value: value.type if isinstance(value, Said) else "",
)
def test_status_is_updated(event: Said, status: str, reason: str, terminal: bool) -> None:
    frame = told(event)

    assert (frame.status, frame.reason, frame.terminal, frame.seq) == (status, reason, terminal, 1)


def test_the_phase_of_a_status_is_kept() -> None:
    assert told(CREATED, Said("message.added", {"role": "user", "position": 1})).phase == "queued"


def test_messages_are_kept_in_order() -> None:
    frame = told(
        Said("message.added", {"role": "user", "position": 1}, step=1),
        Said("message.added", {"role": "assistant", "position": 2}, step=1, ref_id=MESSAGE),
    )

    assert frame.messages == [MessageState(1, "user", None, 1), MessageState(2, "assistant", MESSAGE, 1)]
    assert (frame.step, frame.turns) == (1, 1)


def test_rolled_back_messages_are_marked() -> None:
    frame = told(
        Said("message.added", {"role": "assistant", "position": 1}, step=7),
        Said("message.added", {"role": "tool_result", "position": 2}, step=7),
        Said("message.added", {"role": "assistant", "position": 3}, step=8),
        Said("run.rolled_back", {"positions": [3]}),
    )

    assert [message.rolled_back for message in frame.messages] == [False, False, True]
    assert (frame.step, frame.turns) == (7, 1)


def test_a_tool_call_is_updated() -> None:
    start = Said("tool.start", {"call_id": "c", "tool_name": "read"}, step=1, ref_id=CALL)
    end = Said("tool.end", {"call_id": "c", "tool_name": "read", "status": "error"}, step=1, ref_id=CALL)

    frame = told(start)
    assert frame.calls == {CALL: ToolCallState(CALL, "c", "read", "running", 1, starts=1)}
    frame = told(start, start, end)
    assert frame.calls == {CALL: ToolCallState(CALL, "c", "read", "error", 1, starts=2)}


def test_a_call_that_never_started_can_end() -> None:
    frame = told(Said("tool.end", {"call_id": "c", "tool_name": "read", "status": "denied"}, step=1, ref_id=CALL))

    assert frame.calls[CALL] == ToolCallState(CALL, "c", "read", "denied", 1, starts=0)


def test_waiting_for_an_unknown_outcome_makes_the_running_call_unknown() -> None:
    other = uuid4()
    frame = told(
        Said("tool.end", {"call_id": "a", "status": "completed"}, ref_id=other),
        Said("tool.start", {"call_id": "b", "tool_name": "pay"}, ref_id=CALL),
        Said("run.waiting", {"reason": "unknown_tool"}),
    )

    assert {call.call_id: call.status for call in frame.calls.values()} == {"a": "completed", "b": "unknown"}


def test_events_of_runners_without_row_ids_are_replayed() -> None:
    frame = told(
        Said("tool.start", {"call_id": "c", "tool_name": "read"}, step=1),
        Said("tool.end", {"call_id": "c", "output": "text"}, step=1),
        Said("tool.end", {"call_id": "d", "tool_name": "read", "error": "no"}, step=2),
        Said("llm.turn.end", {"tool_calls": [{"id": "c", "name": "read"}], "cost_usd": "cheap"}, step=1),
    )

    assert [(call.call_id, call.status) for call in frame.calls.values()] == [("c", "completed"), ("d", "error")]
    assert (frame.requested_calls, frame.cost_usd) == ({1: 1}, None)


def test_tokens_and_costs_are_summed() -> None:
    frame = told(
        Said(
            "llm.turn.end", {"input_tokens": 10, "output_tokens": 2, "tool_calls": 3, "cost_usd": "0.00000001"}, step=1
        ),
        Said("llm.turn.end", {"input_tokens": 5, "cache_read_tokens": 7, "cost_usd": "1E-8"}, step=2),
        Said("llm.turn.end", {}, step=3),
    )

    assert frame.tokens == {"input_tokens": 15, "output_tokens": 2, "cache_read_tokens": 7} | dict.fromkeys(
        ("cache_write_tokens", "cache_write_1h_tokens", "reasoning_tokens"), 0
    )
    assert frame.cost_usd == Decimal("0.00000002")
    assert frame.requested_calls[1] == 3


def test_an_unpriced_run_has_no_cost() -> None:
    frame = told(Said("llm.turn.end", {"input_tokens": 10}, step=1))
    assert (frame.cost_usd, frame.unpriced_calls) == (None, 1)


def test_calls_without_a_price_are_counted_until_a_cost_for_all_is_reported() -> None:
    calls = [
        CREATED,
        Said("llm.turn.end", {"input_tokens": 10}, step=1),
        Said("llm.turn.abandoned", {"usage": "unknown"}, step=2),
        Said("llm.turn.abandoned", {}, step=2),  # the provider refused it
        Said("llm.turn.end", {"input_tokens": 10, "cost_usd": "0.5"}, step=2),
    ]
    frame = told(*calls)
    assert (frame.cost_usd, frame.unpriced_calls) == (Decimal("0.5"), 2)
    frame = told(*calls, Said("run.completed", {"cost_usd": "0.7"}))
    assert (frame.cost_usd, frame.unpriced_calls) == (Decimal("0.7"), 0)


@pytest.mark.parametrize("end", ["llm.turn.end", "llm.turn.abandoned"])
def test_the_open_turn_is_tracked(end: str) -> None:
    start = Said("llm.turn.start", {"attempt": 2}, step=4)

    assert told(CREATED, start).open_turn == OpenTurn(step=4, attempt=2, since=2)
    assert told(start, Said(end, {"attempt": 2}, step=4)).open_turn is None


def test_commands_are_counted() -> None:
    frame = told(
        Said("command.received", {"type": "send", "key": "k"}),
        Said("command.received", {"type": "send"}),
        Said("command.received", {"type": "send"}),
    )

    assert frame.commands == {("k", "send"): 1, (None, "send"): 2}


def test_late_events_move_only_the_seq() -> None:
    frame = told(Said("run.completed", phase="completed"), Said("run.failed", {"error_type": "x"}, late=True))

    assert (frame.status, frame.seq) == ("completed", 2)


@pytest.mark.parametrize("type_", [*sorted(EVENT_TYPES), "x.custom"])
def test_every_type_can_be_replayed(type_: str) -> None:
    """With the required fields of its payload."""
    required = {"status": "queued", "reason": "r", "role": "user", "call_id": "c", "type": "send", "error_type": "e"}

    assert told(Said(type_, required)).seq == 1


# --- A log that the engine wrote --------------------------------------------------------------------------------


@pytest.mark.django_db
def test_replay_of_a_run_of_the_engine() -> None:
    run = drive(make_run(make_agent(fixture="claude-code-7e")))

    frame = fold(log.events_of(run.pk))

    assert (frame.status, frame.phase, frame.terminal) == ("completed", "completed", True)
    assert (frame.step, frame.turns) == (run.step_count, run.step_count)
    assert frame.tokens["output_tokens"] == run.output_tokens
    assert frame.cost_usd == run.cost_usd
    assert frame.open_turn is None
    assert [message.position for message in frame.messages] == list(range(1, len(frame.messages) + 1))


@pytest.mark.django_db
def test_replay_can_stop_and_continue_at_every_event() -> None:
    run = drive(make_run(make_agent(max_steps=3)))
    events = list(log.events_of(run.pk))
    frames: list[Frame] = []
    frame = Frame()
    for event in events:
        advance(frame, event)
        frames.append(deepcopy(frame))

    for seq in range(1, len(events) + 1):
        head = fold(events[:seq])
        assert head == frames[seq - 1]
        assert fold(events[seq:], deepcopy(head)) == frames[-1]
