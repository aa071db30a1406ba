"""Invariants of every run, and the content of a run without IDs and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import RESOLVED
from timeline import log
from timeline.models import Event


def events(run: AgentRun) -> list[Event]:
    return list(log.events_of(run.pk))


def check(run: AgentRun) -> None:
    """Check what holds for every run at any time: a log without gaps, and a conversation that providers accept.

    The invariants are checked after each test: see tests/support/plugins/invariants_after_each_test.py.
    """
    run.refresh_from_db()
    lines = events(run)
    assert [event.seq for event in lines] == list(range(1, len(lines) + 1))
    messages = list(AgentRunMessage.objects.filter(run=run).order_by("position"))
    assert [message.position for message in messages] == list(range(1, len(messages) + 1))
    active = [message for message in messages if message.rolled_back_at is None]
    asked = [
        part["tool_call_id"]
        for message in active
        for part in message.content["parts"]
        if part["part_kind"] == "tool-call"
    ]
    answered = [
        part["tool_call_id"]
        for message in active
        for part in message.content["parts"]
        if part["part_kind"] == "tool-return"
    ]
    assert Counter(answered) <= Counter(asked)
    assert len(set(answered)) == len(answered), "a call was answered twice"
    if run.state.terminal:
        assert Counter(asked) == Counter(answered), "a call has no answer"
        calls = AgentRunToolCall.objects.filter(run=run)
        assert {call.status for call in calls} <= set(RESOLVED)
        assert_turns_closed(lines)
    # Worker events only: the sweep, which ends waits, holds no lease.
    epochs = [event.epoch for event in lines if event.source == "worker" and event.epoch is not None]
    assert epochs == sorted(epochs), "an event of an earlier epoch came after one of a later"


def assert_turns_closed(lines: Sequence[Event]) -> None:
    """Check that every model turn that started has ended: committed or abandoned."""
    started = sum(event.type == "llm.turn.start" for event in lines)
    ended = sum(event.type in ("llm.turn.end", "llm.turn.abandoned") for event in lines)
    assert started == ended, [event.type for event in lines if event.type.startswith("llm.turn")]


def transcript(run: AgentRun) -> dict[str, Any]:
    """Return the content of a run without IDs and times. It is equal for a crashed and an undisturbed run."""
    run.refresh_from_db()
    messages = AgentRunMessage.objects.filter(run=run).order_by("position")
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "id")
    return {
        "messages": [(m.position, m.role, m.step_number, plain(m.content)) for m in messages],
        "calls": [(c.step_number, c.call_id, c.tool_name, c.input, c.status) for c in calls],
        "checkpoints": [(c.step_number, c.last_message_position) for c in run.checkpoints.order_by("step_number")],
        "run": (run.status, run.step_count, run.result),
        # Only of answers: the usage also counts requests that a crash repeated, so it differs.
        "usage": list(
            run.turn_usages.filter(outcome="answered")
            .order_by("step_number")
            .values_list("step_number", "input_tokens", "output_tokens")
        ),
    }


def plain(value: Any) -> Any:
    """Return a message's content without the values that differ from run to run."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if name not in ("timestamp", "id", "run_id")}
    return [plain(each) for each in value] if isinstance(value, list) else value
