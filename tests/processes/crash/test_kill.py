"""A worker is killed at each crash point; another one finishes the run, and nobody can tell from the result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import chaos
from runs.actions.resume import resume
from runs.fixtures.format import UNKNOWN_OUTCOME
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunToolCall, Attempt
from runs.statuses import RunStatus, ToolStatus
from tests.support.crash_points import IN_A_STEP, ON_SQLITE
from tests.support.paths import ROOT
from tests.support.processes.redis_server import OwnRedis
from tests.support.processes.stage import Stage
from tests.support.run_checks import check, events, transcript
from tests.support.waiting import eventually

Undisturbed = Callable[..., Any]

#: The points that a run meets on a worker, in their order, and how the tests come to them. Not here: those of the
#: doors (command.in_transaction), and those that take another place below (hints, slices, take-overs).
MET = ["sweep.run_seen", "claim.before", "claim.committed", *IN_A_STEP]
#: Killed there, the answer of the model is lost: it is asked again.
ASKED_TWICE = {"model.streaming", "model.answered", "turn.in_transaction", "tool.before_start"}
#: Killed there, a tool has done its work and nobody knows.
DONE_TWICE = {"tool.returned": "call-1-0", "result.in_transaction": "call-1-0", "checkpoint.before": "call-1-1"}
#: No lease is held there, so that nothing has to be recovered.
NOT_HELD = {"sweep.run_seen", "claim.before", "end.committed"}
SLOW_TEXT = {"chunks": 8, "pause_s": 0.04}


def kill_and_go_on(stage: Stage, point: str, *, before: bool = False, **script: Any) -> AgentRun:
    """A run whose first worker dies at `point` and which a second one has; that one was started before or after."""
    second = stage.worker() if before else None
    first = stage.worker(chaos=point)
    if second is not None:
        eventually(lambda: "[queues]" in second.said(), why="the second worker is ready")
        stage.suspend(second)
    run = stage.run(**script)
    first.killed()
    if second is not None:
        second.signal(stage.CONT)
    else:
        stage.worker()
    return run


@pytest.mark.parametrize(
    "point", [pytest.param(name, marks=[pytest.mark.every_database] if name in ON_SQLITE else []) for name in MET]
)
def test_it_survives_a_kill(stage: Stage, undisturbed: Undisturbed, point: str) -> None:
    """At each point: the same rows, and each effect once, as if nothing had happened."""
    script = SLOW_TEXT if point == "model.streaming" else {}
    expected = undisturbed(**script)

    run = kill_and_go_on(stage, f"{point}:1", before=MET.index(point) % 2 == 0, **script)

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected
    for call in AgentRunToolCall.objects.filter(run=run):
        done = stage.effects(call.call_id)
        assert len(done) == (2 if DONE_TWICE.get(point) == call.call_id else 1), call
        assert len({effect.key for effect in done}) == 1
        if call.idempotency_key:
            assert done[0].key == call.idempotency_key
    assert stage.model_calls() == ([1, 1, 2, 3] if point in ASKED_TWICE else [1, 2, 3])
    types = [event.type for event in events(run)]
    assert types.count("run.completed") == types.count("run.started") == 1
    assert types.count("run.recovered") == (0 if point in NOT_HELD else 1)
    died = Attempt.objects.filter(run=run, end_reason="died")
    assert died.count() == types.count("run.recovered")


@pytest.mark.redis
def test_it_survives_a_kill_with_the_hint_in_hand(stage: Stage, undisturbed: Undisturbed, own_redis: OwnRedis) -> None:
    expected = undisturbed()
    # This one sweeps once, before there is anything: what it knows, it knows from the hint.
    first = stage.worker(chaos="hint.received:1", AGENTOPS_SWEEP_S="600")
    eventually(lambda: "[queues]" in first.said(), why="the first worker is up")
    time.sleep(0.5)
    run = stage.run()
    own_redis.hint(run.pk)
    first.killed()
    run.refresh_from_db()
    assert (run.status, run.lease_epoch) == (RunStatus.QUEUED, 0)
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected


@pytest.mark.redis
@pytest.mark.parametrize("point", ["end.hint_sent", "command.committed", "command.hint_sent"])
def test_it_survives_a_kill_beside_the_hint_of_a_handed_back_run(
    stage: Stage, undisturbed: Undisturbed, own_redis: OwnRedis, point: str
) -> None:
    expected = undisturbed(tool_sleep_s=0.2)
    run = stage.run(tool_sleep_s=0.2)
    stage.worker(chaos=f"{point}:1", AGENTOPS_SLICE_S="0").killed()
    run.refresh_from_db()
    assert (run.status, run.status_reason) == (RunStatus.QUEUED, "slice_over")
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected


@pytest.mark.parametrize("point", ["lease.lapse_seen", "run.taken_over"])
def test_it_survives_a_kill_of_the_one_that_takes_over(stage: Stage, undisturbed: Undisturbed, point: str) -> None:
    expected = undisturbed()
    run = stage.run()
    stage.worker(chaos="turn.committed:1").killed()
    stage.worker(chaos=f"{point}:1").killed()
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected
    deaths = 1 if point == "lease.lapse_seen" else 2
    assert [event.type for event in events(run)].count("run.recovered") == deaths


@pytest.mark.parametrize("point", ["recovery.before", "recovery.done"])
def test_it_survives_a_kill_of_the_one_that_closes_an_open_turn(
    stage: Stage, undisturbed: Undisturbed, point: str
) -> None:
    expected = undisturbed()
    run = stage.run()
    stage.worker(chaos="model.before_call:1").killed()
    stage.worker(chaos=f"{point}:1").killed()
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected
    types = [event.type for event in events(run)]
    assert (types.count("run.recovered"), types.count("llm.turn.abandoned")) == (2, 1)


@pytest.mark.parametrize("point", ["recovery.before", "recovery.done"])
def test_it_survives_a_kill_of_the_one_that_rolls_back(stage: Stage, point: str) -> None:
    """An agent that wants a half-done turn taken back; it is, once, and no tool runs twice."""
    run = stage.run()
    run.agent_config["policies"] = {"on_crash": "roll_back"}
    run.save()
    stage.worker(chaos="turn.committed:1").killed()
    stage.worker(chaos=f"{point}:1").killed()
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    types = [event.type for event in events(run)]
    assert (types.count("run.recovered"), types.count("run.rolled_back")) == (2, 1)
    assert stage.model_calls() == [1, 1, 2, 3]
    assert sorted(effect.call_id for effect in stage.effects()) == ["call-1-0", "call-1-1", "call-2-0"]


def test_it_survives_a_kill_of_the_one_that_sweeps(stage: Stage, undisturbed: Undisturbed) -> None:
    expected = undisturbed()
    run = stage.run()
    stage.worker(chaos="sweep.message_sent:1").killed()
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected


# --- A call that may happen once ----------------------------------------------------------------------------------

ONCE = [["ledger_once", "ledger_read"], ["ledger_idempotent"]]
#: Where the first call is marked running, and whether it has had its effect.
CAUGHT = {"turn.committed": 0, "tool.marked_running": 0, "tool.returned": 1, "result.in_transaction": 1}


@pytest.mark.parametrize("point", CAUGHT)
def test_it_never_repeats_what_may_happen_once_and_waits(stage: Stage, point: str) -> None:
    """What was started and has no result is found, and never run again by itself."""
    run = kill_and_go_on(stage, f"{point}:1", calls=ONCE)

    stage.reaches(run, RunStatus.WAITING)
    assert run.status_reason == "unknown_tool"
    check(run)
    first, second = AgentRunToolCall.objects.filter(run=run).order_by("id")
    assert (first.status, first.result_message, second.status) == (ToolStatus.UNKNOWN, None, ToolStatus.PLANNED)
    assert len(stage.effects()) == CAUGHT[point]
    # Nobody answers; an operator pauses it, which closes the calls, and it goes on from there.
    inbox.pause(run.pk, by="operator")
    later = resume(run.pk, by="operator", message="Look whether it happened.").run
    stage.reaches(later, RunStatus.COMPLETED)
    check(run)
    check(later)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.status, second.status) == (ToolStatus.UNKNOWN, ToolStatus.DENIED)
    assert len(stage.effects("call-1-0")) == CAUGHT[point]
    assert not stage.effects("call-1-1")


@pytest.mark.parametrize("point", ["command.in_transaction", "command.committed"])
def test_it_survives_a_kill_of_the_one_who_says_what_came_of_it(stage: Stage, point: str) -> None:
    """In the transaction nothing was said yet; after it the run goes on, though nobody was told of it."""
    run = kill_and_go_on(stage, "tool.marked_running:1", calls=ONCE)
    stage.reaches(run, RunStatus.WAITING)
    call = AgentRunToolCall.objects.filter(run=run).order_by("id")[0]
    words = ["agent", "outcome", str(run.pk), str(call.pk), "--done", "It is there."]
    stage.spawn(words, program="agentops", AGENTOPS_CHAOS=f"{point}:1").killed()
    if point == "command.in_transaction":
        check(run)
        assert run.status == RunStatus.WAITING
        assert stage.spawn(words, program="agentops").wait(within_s=20, why="it is said") == 0

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    call.refresh_from_db()
    assert (call.status, call.starts, call.output) == (ToolStatus.COMPLETED, 1, "It is there.")
    assert not stage.effects("call-1-0")


@pytest.mark.parametrize("point", ["tool.marked_running", "tool.returned"])
def test_it_never_repeats_what_may_happen_once_and_tells_the_model(stage: Stage, point: str) -> None:
    run = kill_and_go_on(stage, f"{point}:1", calls=ONCE, on_unknown_tool="tell_model")

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    first, *others = AgentRunToolCall.objects.filter(run=run).order_by("id")
    assert first.status == ToolStatus.UNKNOWN
    assert first.result_message is not None
    assert first.result_message.content["parts"][0]["content"] == UNKNOWN_OUTCOME
    assert {call.status for call in others} == {ToolStatus.COMPLETED}
    assert len(stage.effects("call-1-0")) == CAUGHT[point]
    assert stage.model_calls() == [1, 2, 3]


@pytest.mark.parametrize(("point", "done"), [("tool.before_start:2", 1), ("tool.next:1", 1)])
def test_it_runs_what_was_only_planned(stage: Stage, undisturbed: Undisturbed, point: str, done: int) -> None:
    calls = [["ledger_read", "ledger_once"]]
    expected = undisturbed(calls)

    run = kill_and_go_on(stage, point, calls=calls)

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected
    assert len(stage.effects("call-1-0")) == len(stage.effects("call-1-1")) == done


# --- The list of the points ---------------------------------------------------------------------------------------

#: Points of the doors that resume and command; they are met in the tests of those.
OF_DOORS = {"command.in_transaction"}


def test_every_point_in_the_code_is_met_here() -> None:
    code = "".join(path.read_text() for name in ("runs", "timeline") for path in Path(ROOT / name).rglob("*.py"))
    placed = {
        name
        for line in re.findall(r"chaos\.point\((.*)\)", code)
        for name in re.findall(r"[a-z_]+\.[a-z_]+(?=\")", line)
    }

    elsewhere = {
        "hint.received",
        "recovery.before",
        "recovery.done",
        "end.hint_sent",
        "command.committed",
        "command.hint_sent",
        "sweep.message_sent",
        "lease.lapse_seen",
        "run.taken_over",
    }
    assert set(chaos.POINTS) == {*MET, *elsewhere, *OF_DOORS}
    # test_killed_approvals.py kills at those of approvals, test_killed_sessions.py at those of sessions,
    # test_killed_index.py at those of the index, test_killed_alerts.py at those of alerts, test_killed_flows.py at
    # those of flows, test_killed_schedules.py at those of schedules, and tests/processes/ingest kills web processes.
    groups = (
        chaos.APPROVAL_POINTS,
        chaos.DECISION_POINTS,
        chaos.TREE_POINTS,
        chaos.INGEST_POINTS,
        chaos.SESSION_POINTS,
        chaos.INDEX_POINTS,
        chaos.ALERT_POINTS,
        chaos.SCHEDULE_POINTS,
        chaos.FLOW_POINTS,
        # tests/runs/telemetry/test_sinks.py
        chaos.EXPORT_POINTS,
    )
    assert placed == {point for group in (chaos.POINTS, *groups) for point in group}
