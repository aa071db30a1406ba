"""Kill a worker at each crash point: another worker finishes the run, with the same result as without the kill."""

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
from tests.support.child_processes import IN_A_STEP, ON_SQLITE
from tests.support.databases import OwnRedis
from tests.support.machine import ROOT
from tests.support.run_checks import check, events, transcript
from tests.support.stage import Stage
from tests.support.timing import eventually

Undisturbed = Callable[..., Any]

#: The points that a run passes on a worker, in order. Not included: points of commands (command.in_transaction), and
#: points that need hints, slices or takeovers; tests below cover these.
MET = ["sweep.run_seen", "claim.before", "claim.committed", *IN_A_STEP]
#: Points at which a kill loses the model's answer, so that the request is repeated.
ASKED_TWICE = {"model.streaming", "model.answered", "turn.in_transaction", "tool.before_start"}
#: Points at which a tool has had its effect but its result is lost, with the ID of the call.
DONE_TWICE = {"tool.returned": "call-1-0", "result.in_transaction": "call-1-0", "checkpoint.before": "call-1-1"}
#: Points at which no lease is held, so no recovery is needed.
NOT_HELD = {"sweep.run_seen", "claim.before", "end.committed"}
SLOW_TEXT = {"chunks": 8, "pause_s": 0.04}


def kill_and_go_on(stage: Stage, point: str, *, before: bool = False, **script: Any) -> AgentRun:
    """Create a run and kill its first worker at `point`; a second worker continues it.

    With `before`, the second worker starts before the first one and is suspended until the kill.
    """
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
def test_a_run_survives_a_kill(stage: Stage, undisturbed: Undisturbed, point: str) -> None:
    """The rows are the same as without a kill, and each effect happens once."""
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
def test_a_run_survives_a_kill_after_its_hint_was_received(
    stage: Stage, undisturbed: Undisturbed, own_redis: OwnRedis
) -> None:
    expected = undisturbed()
    # This worker sweeps once, before the run exists, so it learns of the run only from the hint.
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
def test_a_requeued_run_survives_a_kill_around_its_hint(
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
def test_a_run_survives_a_kill_of_the_worker_that_takes_over(
    stage: Stage, undisturbed: Undisturbed, point: str
) -> None:
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
def test_a_run_survives_a_kill_of_the_worker_that_closes_an_open_turn(
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
def test_a_run_survives_a_kill_of_the_worker_that_rolls_back(stage: Stage, point: str) -> None:
    """The agent's policy rolls back a half-done turn: this happens once, and no tool runs twice."""
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


def test_a_run_survives_a_kill_of_the_worker_that_sweeps(stage: Stage, undisturbed: Undisturbed) -> None:
    expected = undisturbed()
    run = stage.run()
    stage.worker(chaos="sweep.message_sent:1").killed()
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected


# --- Calls with the effect at_most_once ---------------------------------------------------------------------------

ONCE = [["ledger_once", "ledger_read"], ["ledger_idempotent"]]
#: Points at which the first call is marked running, with the number of its effects.
CAUGHT = {"turn.committed": 0, "tool.marked_running": 0, "tool.returned": 1, "result.in_transaction": 1}


@pytest.mark.parametrize("point", CAUGHT)
def test_a_lost_at_most_once_call_is_not_repeated_and_the_run_waits(stage: Stage, point: str) -> None:
    """A call that was started and has no result is detected, and never repeated automatically."""
    run = kill_and_go_on(stage, f"{point}:1", calls=ONCE)

    stage.reaches(run, RunStatus.WAITING)
    assert run.status_reason == "unknown_tool"
    check(run)
    first, second = AgentRunToolCall.objects.filter(run=run).order_by("id")
    assert (first.status, first.result_message, second.status) == (ToolStatus.UNKNOWN, None, ToolStatus.PLANNED)
    assert len(stage.effects()) == CAUGHT[point]
    # The outcome is not resolved; an operator pauses the run, which closes the calls, and resumes it.
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
def test_a_run_survives_a_kill_of_the_command_that_resolves_an_outcome(stage: Stage, point: str) -> None:
    """A kill in the transaction loses the outcome. After the commit the run continues, although no hint was sent."""
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
def test_a_lost_at_most_once_call_is_reported_to_the_model(stage: Stage, point: str) -> None:
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
def test_calls_that_were_only_planned_are_run(stage: Stage, undisturbed: Undisturbed, point: str, done: int) -> None:
    calls = [["ledger_read", "ledger_once"]]
    expected = undisturbed(calls)

    run = kill_and_go_on(stage, point, calls=calls)

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert transcript(run) == expected
    assert len(stage.effects("call-1-0")) == len(stage.effects("call-1-1")) == done


# --- Completeness of the points -----------------------------------------------------------------------------------

#: Points of commands for resuming and controlling runs, covered by other tests.
OF_DOORS = {"command.in_transaction"}


def test_every_point_in_the_code_is_covered() -> None:
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
    # test_killed_approvals.py covers points of approvals, test_killed_sessions.py of sessions, test_killed_index.py of
    # the index, test_killed_alerts.py of alerts, test_killed_flows.py of flows, test_killed_schedules.py of schedules,
    # and tests/processes/ingest kills web processes.
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
