"""Programs with durable functions that are killed, suspended and stopped in a step, and sites that are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from agentops.accounts.models import Project
from agentops.client import Client
from runs.lifecycle import creation
from runs.models import Agent, AgentRun
from runs.statuses import RunStatus
from tests.support.factories import with_key
from tests.support.machine import ROOT
from tests.support.stage import Stage
from tests.support.suite_fixtures import MakeWeb
from tests.support.timing import eventually
from tests.support.web_server import WebProcess

PROGRAM = ROOT / "tests/support/programs/durable_program.py"


class Place:
    """A project, its site, and the directory of its programs."""

    def __init__(self, stage: Stage, web: WebProcess) -> None:
        self.stage = stage
        self.web = web
        self.directory = stage.home / "durable"
        self.directory.mkdir()
        self.project = Project.objects.create(slug="elsewhere", name="Elsewhere")
        self.processes: list[subprocess.Popen[str]] = []

    def key(self, *scopes: str) -> str:
        return with_key(self.project, *scopes)["Authorization"].removeprefix("Bearer ")

    @property
    def log(self) -> Path:
        """The messages of all programs."""
        return self.directory / "log"

    def program(self, **env: str) -> subprocess.Popen[str]:
        whole = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "AGENTOPS_URL": self.web.url,
            "AGENTOPS_API_KEY": self.key("work"),
            **env,
        }
        command = [sys.executable, str(PROGRAM), str(self.directory)]
        with self.log.open("a") as log:
            process = subprocess.Popen(command, env=whole, text=True, stderr=log)
        self.processes.append(process)
        return process

    def run(self, effect: str, agent: str = "ledger") -> AgentRun:
        """Create a run as soon as a program has registered the agent."""
        agents = Agent.objects.filter(project=self.project, slug=agent)
        row = eventually(agents.first, why="the program registers its agent")
        assert row is not None
        return creation.create(self.project, row, effect, by="test")

    def go(self) -> None:
        """Let the second step end."""
        (self.directory / "go").touch()

    @property
    def words(self) -> list[str]:
        """The steps that were executed, in order."""
        file = self.directory / "ledger"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    def reaches_second_step(self, count: int = 1) -> None:
        eventually(lambda: self.words.count("second") == count, why=lambda: f"only {self.words} were executed")

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(20)


@pytest.fixture
def make_place(stage: Stage, web_process: MakeWeb) -> Iterator[Callable[..., Place]]:
    """Yield a function that returns a place whose leases take some seconds."""
    places: list[Place] = []

    def make(lease_s: str = "2") -> Place:
        places.append(Place(stage, web_process(AGENTOPS_LEASE_S=lease_s, AGENTOPS_RENEW_S="0.5")))
        return places[-1]

    yield make
    for place in places:
        place.end()
        print(place.log.read_text())


MakePlace = Callable[..., Place]


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_only_the_interrupted_step_is_repeated(make_place: MakePlace, effect: str) -> None:
    place = make_place()
    first = place.program()
    run = place.run(effect)
    place.reaches_second_step()
    first.kill()
    first.wait(20)
    place.go()
    second = place.program()
    place.stage.reaches(run, RunStatus.COMPLETED)

    assert place.words == ["first", "second", "second", "third"]
    assert json.loads(run.result) == ["first", f"second by {second.pid}", "third"]
    assert run.lease_epoch == 2


def test_a_step_with_an_effect_is_not_repeated_until_a_person_has_decided(make_place: MakePlace) -> None:
    place = make_place()
    first = place.program()
    run = place.run("once")
    place.reaches_second_step()
    first.kill()
    first.wait(20)
    place.go()
    place.program()
    place.stage.reaches(run, RunStatus.WAITING)
    assert run.status_reason == "unknown_tool"
    with Client(place.web.url, place.key("read", "write")) as client:
        [request] = client.approvals(kind="unknown_outcome")
        client.resolve_call(run.pk, request.call_id, "done", "it was done")
    place.stage.reaches(run, RunStatus.COMPLETED)

    assert place.words == ["first", "second", "third"]
    assert json.loads(run.result) == ["first", "it was done", "third"]


def test_a_suspended_program_writes_nothing_after_another_has_taken_over(make_place: MakePlace) -> None:
    place = make_place()
    first = place.program()
    run = place.run("read")
    place.reaches_second_step()
    first.send_signal(signal.SIGSTOP)
    second = place.program()
    place.reaches_second_step(2)
    first.send_signal(signal.SIGCONT)
    place.go()
    place.stage.reaches(run, RunStatus.COMPLETED)

    assert json.loads(run.result) == ["first", f"second by {second.pid}", "third"]
    assert place.words == ["first", "second", "second", "third"]


def test_a_terminated_program_ends_its_step_and_hands_the_run_back(make_place: MakePlace) -> None:
    place = make_place("60")
    first = place.program()
    run = place.run("once")
    place.reaches_second_step()
    first.terminate()
    eventually(lambda: "1 runs are handed back" in place.log.read_text(), why="the program has got the signal")
    place.go()
    assert first.wait(30) == 0
    run.refresh_from_db()
    assert (run.status, run.status_reason) == (RunStatus.QUEUED, "worker_ending")
    place.program()
    place.stage.reaches(run, RunStatus.COMPLETED)

    assert place.words == ["first", "second", "third"]
    assert json.loads(run.result)[1] == f"second by {first.pid}"


def test_a_site_that_restarts_loses_no_step(make_place: MakePlace) -> None:
    place = make_place("60")
    program = place.program()
    run = place.run("once")
    place.reaches_second_step()
    place.web.kill()
    place.go()
    place.web.start()
    place.stage.reaches(run, RunStatus.COMPLETED)

    assert place.words == ["first", "second", "third"]
    assert (json.loads(run.result)[1], run.lease_epoch) == (f"second by {program.pid}", 1)


def test_a_site_that_is_gone_too_long_ends_the_function(make_place: MakePlace) -> None:
    """The program cancels the step when its lease may be over, and continues when the site is back."""
    place = make_place("2")
    place.program()
    run = place.run("read")
    place.reaches_second_step()
    place.web.kill()
    place.stage.reaches(run, RunStatus.RUNNING)
    eventually(lambda: AgentRun.objects.claimable().filter(pk=run.pk).exists(), why="the lease is over")
    place.web.start()
    place.reaches_second_step(2)
    place.go()
    place.stage.reaches(run, RunStatus.COMPLETED)

    assert place.words == ["first", "second", "second", "third"]
    assert run.lease_epoch == 2


def test_a_function_that_blocks_the_event_loop_keeps_its_lease(make_place: MakePlace) -> None:
    place = make_place("2")
    program = place.program()
    run = place.run("once", "blocking")
    place.reaches_second_step()
    run.refresh_from_db()
    assert run.lease_expires_at is not None
    later = run.lease_expires_at + timedelta(seconds=3)
    renewed = AgentRun.objects.filter(pk=run.pk, lease_expires_at__gt=later)
    eventually(renewed.exists, why="the lease is renewed")
    place.go()
    place.stage.reaches(run, RunStatus.COMPLETED)

    assert (run.result, run.lease_epoch) == (f"second by {program.pid}", 1)
