"""The state at an event equals replaying the events up to it, whichever events are read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runs.models import AgentRun
from runs.queries import replay_states
from tests.support.factories import drive, make_agent, make_run, make_waiting
from tests.support.timelines import grow, told
from timeline import log
from timeline.replay import Frame, fold

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]


def played() -> AgentRun:
    """Return a run of three steps, with events that change no state: unknown ones, and one after the end."""
    run = make_run(make_agent(max_steps=3))
    grow(run, 2)
    run = drive(run)
    told(run, "message.added", {"role": "user", "content": "too late"}, late=True)
    return run


def prefix(run: AgentRun, seq: int) -> Frame:
    return fold([event for event in log.events_of(run.pk) if event.seq <= seq])


@pytest.mark.parametrize("make", [played, make_waiting])
def test_the_state_at_an_event_equals_replaying_up_to_it(make) -> None:
    run = make()
    events = log.read(run.pk, limit=1000)

    assert len(events) > 8
    for event in events:
        assert replay_states.frame_at(run.pk, event.seq) == prefix(run, event.seq)


def test_before_the_first_event_the_state_is_empty() -> None:
    run = played()

    assert replay_states.frame_at(run.pk, 0) == Frame()
    assert replay_states.snapshot_at(run.pk, 0)[1] == []


def test_the_states_of_a_range_equal_the_states_at_its_events() -> None:
    run = played()
    events = log.read(run.pk, limit=1000)

    for begin in (0, 1, 7, len(events) - 1):
        frame = replay_states.frame_at(run.pk, events[begin].seq - 1)
        pairs = list(replay_states.continued(frame, events[begin:]))
        assert [event.seq for event, _ in pairs] == [event.seq for event in events[begin:]]
        assert [state for _, state in pairs] == [replay_states.snapshot_at(run.pk, event.seq)[0] for event, _ in pairs]


def test_the_last_state_equals_the_rows() -> None:
    run = played()
    run.refresh_from_db()
    state, messages = replay_states.snapshot_at(run.pk, len(log.read(run.pk, limit=1000)))

    assert (state.status, state.reason, state.step) == (run.status, run.status_reason, run.step_count)
    assert state.tokens == {name: getattr(run, name) for name in state.tokens}
    assert state.open_calls == ()
    assert state.node_id == run.agent_config["agent_id"]
    rows = run.messages.order_by("position").values_list("pk", "position", "role")
    assert [(m.message.ref_id, m.message.position, m.message.role) for m in messages] == list(rows)


def test_a_call_is_open_from_its_start_to_its_end() -> None:
    run = played()
    seen = {}
    for event, state in replay_states.continued(Frame(), log.read(run.pk, limit=1000)):
        seen[event.seq] = (event.type, [call.status for call in state.open_calls])
    starts = [calls for type_, calls in seen.values() if type_ == "tool.start"]
    assert starts
    assert all(calls[-1] == "running" for calls in starts)
    waiting = make_waiting()
    state = replay_states.snapshot_at(waiting.pk, len(log.read(waiting.pk, limit=1000)))[0]
    assert [call.status for call in state.open_calls] == ["unknown"]


def test_long_pauses_are_shortened_and_clocks_that_move_back_cause_no_wait() -> None:
    start = datetime(2026, 11, 20, tzinfo=UTC)
    times = [start + timedelta(seconds=at) for at in (0, 1.5, 1.5, 400, 399)]

    assert replay_states.pauses_s(times) == [1.5, 0.0, 5.0, 0.0]
    assert replay_states.pauses_s(times[:1]) == []


@pytest.mark.parametrize("make", [played, make_waiting])
def test_replay_continues_from_a_summary(make) -> None:
    run = make()
    events = log.read(run.pk, limit=1000)

    for begin in range(1, len(events)):
        summary = replay_states.summary_of(replay_states.frame_at(run.pk, begin), 3000)
        assert summary is not None
        states = [state for _, state in replay_states.continued(replay_states.frame_from(summary), events[begin:])]
        assert states == [state for _, state in replay_states.continued(Frame(), events)][begin:]


def test_a_state_with_a_secret_or_too_long_has_no_summary() -> None:
    assert replay_states.summary_of(Frame(reason="operator"), 3000) is not None
    assert replay_states.summary_of(Frame(reason="operator"), 50) is None
    assert replay_states.summary_of(Frame(reason="ghp_" + "a1B2" * 9), 3000) is None
