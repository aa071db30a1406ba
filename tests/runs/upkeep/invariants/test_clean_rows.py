"""Every invariant holds for rows that the engine writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_django import Settings

from runs import chaos
from runs.actions.resume import resume
from runs.engine.results import ShutdownDue
from runs.fixtures.fixture_files import find_named, load_named
from runs.lifecycle import inbox, suspects, transitions
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import RunStatus
from runs.upkeep.invariants import check
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from tests.support.upkeep import recovered

FIXTURE = "claude-code-7e"


@pytest.mark.django_db(transaction=True)
class TestItIsQuietAbout:
    def test_an_empty_database(self) -> None:
        assert check() == []

    @pytest.mark.parametrize("fixture", ["claude-code-5c", "claude-code-7e", "claude-code-b6"])
    def test_a_completed_run(self, fixture: str) -> None:
        run = drive(make_run(make_agent(fixture=fixture)))

        assert run.status == RunStatus.COMPLETED
        assert check() == []
        assert check(run.pk) == []

    @pytest.mark.slow
    def test_a_lineage_that_pauses_repeatedly(self) -> None:
        run = drive(make_run(make_agent(fixture=FIXTURE, max_steps=3)))
        while run.status == RunStatus.PAUSED:
            assert check() == []
            resumed = resume(run.pk, by="test").run
            assert check() == []
            run = drive(resumed)

        assert run.status == RunStatus.COMPLETED
        assert run.step_count == len(load_named(FIXTURE).answers)
        assert check() == []

    def test_a_fresh_start(self) -> None:
        old = drive(make_run(make_agent(fixture=FIXTURE, max_steps=3)))
        new = resume(old.pk, by="test", message="begin again", append=False).run

        assert drive(new).status == RunStatus.PAUSED
        assert check() == []

    def test_runs_stopped_and_paused_before_they_began(self) -> None:
        inbox.stop(make_run().pk, by="test")
        inbox.pause(make_run().pk, by="test")

        assert check() == []

    @pytest.mark.parametrize("wish", [inbox.stop, inbox.pause])
    @pytest.mark.parametrize(
        "point",
        [
            "model.answered",
            "turn.committed",
            "tool.marked_running",
            "tool.returned",
            "result.committed",
            "checkpoint.before",
        ],
    )
    def test_a_run_stopped_or_paused_in_the_middle(
        self, wish: Callable[..., object], point: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = make_run(make_agent(fixture=FIXTURE))
        at_point(point, lambda: wish(run.pk, by="test"), monkeypatch, hit=3)

        assert drive(run).status in {RunStatus.STOPPED, RunStatus.PAUSED}
        assert [violation for violation in check() if not violation.warning_only] == []

    @pytest.mark.parametrize("wish", [inbox.stop, inbox.pause])
    def test_a_run_ended_with_open_calls(self, wish: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
        run = with_open_calls(monkeypatch)

        wish(run.pk, by="test")

        assert AgentRunToolCall.objects.filter(run=run, status="unknown").exists()
        assert check() == []

    def test_a_recording_that_is_too_short(self, settings: Settings, tmp_path: Path) -> None:
        settings.AGENTOPS_FIXTURES = [str(tmp_path)]
        (tmp_path / "cut.json").write_text(shortened(FIXTURE, calls=2))

        run = drive(make_run(make_agent(fixture="cut")))

        assert (run.status, run.status_reason, run.step_count) == ("paused", "fixture_exhausted", 2)
        assert check() == []

    def test_a_failed_run(self) -> None:
        policies = {"on_idle": {"action": "fail"}}

        run = drive(make_run(make_agent(fixture=FIXTURE, policies=policies, tools=["recorded", "done"])))

        assert run.status == RunStatus.FAILED
        assert check() == []

    def test_a_run_whose_worker_died(self) -> None:
        run = recovered(make_run())

        assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 2)
        assert check() == []

    def test_a_run_that_kills_its_workers(self) -> None:
        run = make_run()
        for _ in range(3):
            transitions.claim(run.pk, "dead", careful=False)
            assert suspects.note_death_alone("dead")

        assert drive(run).status_reason == "poison_step"
        assert [violation for violation in check() if not violation.warning_only] == []


def at_point(name: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, hit: int = 1) -> None:
    """Call `act` at the crash point, at its n-th hit."""
    hits = []

    def point(reached: str) -> None:
        if reached == name:
            hits.append(reached)
            if len(hits) == hit:
                act()

    monkeypatch.setattr(chaos, "point", point)


def with_open_calls(monkeypatch: pytest.MonkeyPatch) -> AgentRun:
    """Return a queued run in the middle of its turn: a worker handed it back between the start and end of a call."""
    run = make_run(make_agent(fixture=FIXTURE))

    def let_go() -> None:
        raise ShutdownDue

    at_point("tool.marked_running", let_go, monkeypatch)
    worker = Worker()
    worker.drive(run.pk)
    worker.close(5)
    run.refresh_from_db()
    assert run.status == RunStatus.QUEUED
    return run


def shortened(name: str, *, calls: int) -> str:
    recording = json.loads(find_named(name).read_text())
    return json.dumps({**recording, "calls": recording["calls"][:calls]})
