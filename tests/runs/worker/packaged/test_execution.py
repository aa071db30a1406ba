"""Runs of agents of packages, which a worker in this process executes."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs import chaos
from runs.actions import approvals, run_actions
from runs.lifecycle import transitions
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall, Approval, Attempt, TurnUsage
from runs.worker.in_process import drive_to_rest
from runs.worker.worker import Worker, announce, leave
from tests.support import packaged
from tests.support.durable import steps_of
from tests.support.packaged import Driving
from tests.support.timing import eventually
from timeline.events import EventType
from timeline.log import events_of


def test_a_run_is_executed_in_this_process(shop: Project, worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = drive_to_rest(packaged.start(shop, "support").pk, worker)

    assert (run.status, run.source_name, run.code_version) == ("completed", "native", 1)
    assert json.loads(run.result) == ["first", f"second by {os.getpid()}", "third"]
    assert steps_of(run) == [("1", "first", "done"), ("2", "second", "done"), ("3", "third", "done")]
    assert packaged.words(tmp_path) == ["first", "second", "third"]
    assert Attempt.objects.get(run=run).owner == worker.owner


def test_calls_of_models_and_tools_are_counted_and_shown(shop: Project, worker: Worker) -> None:
    run = drive_to_rest(packaged.start(shop, "desk").pk, worker)

    assert (run.status, run.result, run.input_tokens, run.output_tokens) == ("completed", "5 refunded", 9, 2)
    assert TurnUsage.objects.get(run=run).model == "claude-sonnet-4-5"
    assert AgentRunToolCall.objects.get(run=run).output == "5 refunded"


def test_a_run_waits_for_people_signals_and_children_without_a_worker(shop: Project, worker: Worker) -> None:
    run = drive_to_rest(packaged.start(shop, "asking").pk, worker)
    assert (run.status, run.status_reason) == ("waiting", "approval")
    call = Approval.objects.get(run=run).call
    approvals.decide("test", run, call.pk, Decision(approves=True))
    run = drive_to_rest(run.pk, worker)
    assert (run.status, run.status_reason) == ("waiting", "input")
    run_actions.reply("test", run, "blue")
    assert worker.drive(run.pk)
    run.refresh_from_db()
    assert (run.status, run.status_reason) == ("waiting", "signal")
    run_actions.signal("test", run, "paid", {"cents": 500})
    run = drive_to_rest(run.pk, worker)

    assert run.status == "completed"
    assert json.loads(run.result) == {"colour": "blue", "paid": {"cents": 500}, "child": '[\n  "0",\n  "1"\n]'}
    child = AgentRun.objects.get(parent_run=run)
    assert (child.is_packaged, child.agent_config["agent_id"]) == (True, "counting")


def test_a_stop_cancels_the_step(shop: Project, worker: Worker, tmp_path: Path) -> None:
    run = packaged.start(shop, "support")
    with Driving(worker, run):
        packaged.at(tmp_path, "second")
        run_actions.stop("test", run)

    assert (run.status, run.status_reason) == ("stopped", "operator")
    assert packaged.words(tmp_path) == ["first", "second"]


def test_a_pause_waits_for_the_step_and_a_resumed_run_continues(shop: Project, worker: Worker, tmp_path: Path) -> None:
    run = packaged.start(shop, "support", "once")
    with Driving(worker, run):
        packaged.at(tmp_path, "second")
        run_actions.pause("test", run)
        eventually(lambda: "pause" in _pending(run), why="the pause is pending")
        (tmp_path / "go").touch()
    assert (run.status, run.status_reason) == ("paused", "operator")

    resumed = drive_to_rest(run_actions.resume("test", run).run.pk, worker)
    assert (resumed.status, resumed.is_packaged, resumed.code_version) == ("completed", True, 1)
    assert packaged.words(tmp_path) == ["first", "second", "third"]


def _pending(run: AgentRun) -> set[str]:
    return set(run.commands.filter(applied_at=None).values_list("type", flat=True))


def test_messages_reach_the_function(shop: Project, worker: Worker) -> None:
    run = packaged.start(shop, "talking")
    with Driving(worker, run):
        eventually(lambda: steps_of(run), why="the function has started")
        for text in ("hello", "done"):
            run_actions.send("test", run, text)

    assert (run.status, json.loads(run.result)) == ("completed", ["hello", "done"])


def test_an_error_of_the_function_pauses_the_run(shop: Project, worker: Worker, tmp_path: Path) -> None:
    run = drive_to_rest(packaged.start(shop, "failing").pk, worker)

    assert (run.status, run.status_reason, run.error_type) == ("paused", "error", "ValueError")
    assert run.error_message == "no such customer"
    resumed = drive_to_rest(run_actions.resume("test", run).run.pk, worker)
    assert (resumed.status, packaged.words(tmp_path)) == ("paused", ["first"])


def test_a_synchronous_function_blocks_no_other(shop: Project, worker: Worker, tmp_path: Path) -> None:
    run = packaged.start(shop, "blocking")
    with Driving(worker, run):
        packaged.at(tmp_path, "second")
        other = drive_to_rest(packaged.start(shop, "counting", "2").pk, worker)
        assert other.status == "completed"
        (tmp_path / "go").touch()

    assert run.result == f"second by {os.getpid()}"


def test_a_worker_that_ends_hands_the_run_back(shop: Project) -> None:
    first, second = Worker(), Worker()
    run = packaged.start(shop, "talking")
    try:
        with Driving(first, run):
            eventually(lambda: steps_of(run), why="the function has started")
            first.ask_to_stop()
        assert (run.status, run.status_reason) == ("queued", "worker_ending")
        assert {state for _, _, state in steps_of(run)} == {"done"}
        run_actions.send("test", run, "done")
        assert drive_to_rest(run.pk, second).status == "completed"
    finally:
        first.close(5)
        second.close(5)


def test_a_step_that_outlasts_the_end_of_its_worker_is_cancelled(shop: Project, tmp_path: Path, settings: Any) -> None:
    settings.AGENTOPS_GRACE_S = 0.2
    worker = Worker()
    run = packaged.start(shop, "support", "read")
    with Driving(worker, run):
        packaged.at(tmp_path, "second")
        worker.close(5)

    assert (run.status, run.status_reason) == ("queued", "worker_ending")


def test_a_run_that_was_taken_over_is_dropped(shop: Project, worker: Worker, tmp_path: Path) -> None:
    """The first worker loses its lease during a step. Its value is refused, and the second worker repeats the step."""
    other = Worker()
    run = packaged.start(shop, "support", "read")
    try:
        with Driving(worker, run):
            packaged.at(tmp_path, "second")
            transitions.expire_leases(worker.owner)
            with Driving(other, run):
                packaged.at(tmp_path, "second", 2)
                (tmp_path / "go").touch()
    finally:
        other.close(5)

    assert (run.status, run.lease_epoch) == ("completed", 2)
    assert packaged.words(tmp_path) == ["first", "second", "second", "third"]
    attempts = Attempt.objects.filter(run=run).order_by("epoch").values_list("owner", "end_reason")
    assert list(attempts) == [(worker.owner, "fenced"), (other.owner, "completed")]


@pytest.mark.parametrize("slice_s", [0, 0.01])
def test_a_long_run_gives_its_turn_to_others(shop: Project, worker: Worker, settings: Any, slice_s: float) -> None:
    """With AGENTOPS_SLICE_S=0 always, otherwise only while another run waits for a worker of the queue."""
    settings.AGENTOPS_SLICE_S = slice_s
    announce("other", ["default"], 1, agents={"talking": [1], "counting": [1]})
    waiting = packaged.start(shop, "counting", "1")
    run = packaged.start(shop, "talking")
    with Driving(worker, run):
        pass
    assert (run.status, run.status_reason) == ("queued", "slice_over")
    number = len(steps_of(run))
    assert number > 0
    if slice_s:
        assert drive_to_rest(waiting.pk, worker).status == "completed"
    run_actions.send("test", run, "done")
    leave("other")

    assert drive_to_rest(run.pk, worker).result == '[\n  "done"\n]'


def test_a_fork_has_the_journal_up_to_its_step(shop: Project, worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = drive_to_rest(packaged.start(shop, "support").pk, worker)
    fork = drive_to_rest(run_actions.fork("test", run, step=2).pk, worker)

    assert (fork.status, fork.is_packaged) == ("completed", True)
    assert packaged.words(tmp_path) == ["first", "second", "third", "third"]


def test_a_policy_for_deaths_decides(shop: Project, worker: Worker) -> None:
    run = packaged.start(shop, "support")
    run.agent_config["policies"] = {"on_dead": [{"action": "escalate"}]}
    run.save(update_fields=["agent_config"])
    assert transitions.claim(run.pk, "a worker that dies") is not None
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=Now() - timedelta(seconds=1))
    assert worker.drive(run.pk)

    run.refresh_from_db()
    assert (run.status, run.status_reason) == ("paused", "escalated")


def test_an_unexpected_error_of_the_site_hands_the_run_back(
    shop: Project, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as in a step of the site's own loop: the run is queued again, and pauses after the third error."""
    run = packaged.start(shop, "counting", "1")

    def fail(point: str) -> None:
        if point == "result.in_transaction":
            raise LookupError(point)

    monkeypatch.setattr(chaos, "point", fail)
    for _ in range(3):
        assert worker.drive(run.pk)

    run.refresh_from_db()
    assert (run.status, run.status_reason) == ("paused", "engine_error")
    assert events_of(run.pk).filter(type=EventType.ERROR).count() == 3
