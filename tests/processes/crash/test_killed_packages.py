"""Workers that execute agents of packages are killed, suspended and stopped in a step of a durable function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.actions import run_actions
from runs.actions.unknown_calls import OutcomeChoice
from runs.models import Agent, AgentRun, AgentRunToolCall, Attempt, WorkerProcess
from runs.statuses import RunStatus, ToolStatus
from tests.support import packaged
from tests.support.child_processes import ChildProcess
from tests.support.databases import OwnRedis
from tests.support.stage import Stage
from tests.support.timing import eventually


class Shop:
    """A stage whose workers have the package, and a project."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.folder = folder
        self.project = Project.objects.create(slug="shop", name="Shop")

    def worker(self, **env: str) -> ChildProcess:
        return self.stage.worker(**packaged.environment(self.folder), **env)

    def run(self, effect: str, agent: str = "support") -> AgentRun:
        """Create a run as soon as a worker has registered the agent."""
        agents = Agent.objects.filter(project=self.project, slug=agent)
        eventually(agents.exists, within_s=180, why="a worker registers the agent")
        return packaged.start(self.project, agent, effect)

    def at(self, word: str, count: int = 1) -> None:
        packaged.at(self.folder, word, count, within_s=120)

    def go(self) -> None:
        """End the second step."""
        (self.folder / "go").touch()

    @property
    def words(self) -> list[str]:
        return packaged.words(self.folder)


def kill(worker: ChildProcess) -> None:
    worker.signal(Stage.KILL)
    worker.killed()


@pytest.fixture
def shop(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    folder = tmp_path / "package"
    folder.mkdir()
    packaged.install(folder, monkeypatch)
    return Shop(stage, folder)


@pytest.mark.every_database
@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_only_the_interrupted_step_is_repeated(shop: Shop, effect: str) -> None:
    first = shop.worker()
    run = shop.run(effect)
    shop.at("second")
    kill(first)
    shop.go()
    second = shop.worker()
    shop.stage.reaches(run, RunStatus.COMPLETED)

    assert shop.words == ["first", "second", "second", "third"]
    assert json.loads(run.result) == ["first", f"second by {second.pid}", "third"]
    assert run.lease_epoch == 2
    assert Attempt.objects.get(run=run, epoch=1).end_reason == "died"


@pytest.mark.every_database
def test_a_step_with_an_effect_is_not_repeated_until_a_person_has_decided(shop: Shop) -> None:
    first = shop.worker()
    run = shop.run("once")
    shop.at("second")
    kill(first)
    shop.go()
    shop.worker()
    shop.stage.reaches(run, RunStatus.WAITING)
    assert run.status_reason == "unknown_tool"
    call = AgentRunToolCall.objects.get(run=run, status=ToolStatus.UNKNOWN)
    run_actions.resolve_call("test", run, call.pk, OutcomeChoice.DONE, text="it was done")
    shop.stage.reaches(run, RunStatus.COMPLETED)

    assert shop.words == ["first", "second", "third"]
    assert json.loads(run.result) == ["first", "it was done", "third"]


def test_a_suspended_worker_writes_nothing_after_another_has_taken_over(shop: Shop) -> None:
    first = shop.worker()
    run = shop.run("read")
    shop.at("second")
    shop.stage.suspend(first)
    second = shop.worker()
    shop.at("second", 2)
    first.signal(shop.stage.CONT)
    shop.go()
    shop.stage.reaches(run, RunStatus.COMPLETED)

    assert json.loads(run.result) == ["first", f"second by {second.pid}", "third"]
    assert shop.words == ["first", "second", "second", "third"]


def test_a_terminated_worker_ends_the_step_and_hands_the_run_back(shop: Shop) -> None:
    """The step may end before the function is notified: then the worker executes the rest, too."""
    first = shop.worker(AGENTOPS_LEASE_S="60")
    run = shop.run("once")
    shop.at("second")
    first.signal(shop.stage.TERM)
    eventually(lambda: "Warm shutdown" in first.said(), why="the worker ends")
    shop.go()
    shop.stage.reaches(run, RunStatus.QUEUED, RunStatus.COMPLETED)
    shop.worker()
    shop.stage.reaches(run, RunStatus.COMPLETED)

    assert shop.words == ["first", "second", "third"]
    assert json.loads(run.result)[1] == f"second by {first.pid}"


def test_a_step_that_kills_its_workers_pauses_the_run_alone(shop: Shop) -> None:
    """The first deaths take workers with them; then the run is tried alone, and the other run is not disturbed."""
    shop.worker()
    run = shop.run("now", "deadly")
    for count in (1, 2):
        shop.at("die", count)
        shop.worker()
    other = shop.run("3", "counting")
    shop.stage.reaches(run, RunStatus.PAUSED, within_s=180)
    shop.stage.reaches(other, RunStatus.COMPLETED)

    assert run.status_reason == "poison_step"
    assert Attempt.objects.filter(run=run, end_reason="died_alone").count() == 3


def test_a_worker_without_the_package_leaves_the_run_alone(shop: Shop) -> None:
    """It also removes nothing from the project, and executes other runs."""
    first = shop.worker()
    run = shop.run("read")
    shop.at("second")
    kill(first)
    plain = shop.stage.worker()
    other = shop.stage.run()
    shop.stage.reaches(other, RunStatus.COMPLETED)
    assert Agent.objects.get(project=shop.project, slug="support").provider == "package"
    processes = WorkerProcess.objects.filter(pid=plain.pid)
    assert eventually(processes.first, why="the worker is announced").agents is None
    run.refresh_from_db()
    assert (run.status, run.lease_epoch) == ("running", 1)
    shop.go()
    shop.worker()
    shop.stage.reaches(run, RunStatus.COMPLETED)


@pytest.mark.redis
@pytest.mark.postgres
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_workers_with_redis(shop: Shop, own_redis: OwnRedis, pool: str) -> None:
    """A message wakes the worker; a killed worker is replaced by another one."""
    argv = ["-A", "agentops", "worker", "--pool", pool, "-c", "2", "--beat"]
    env: dict[str, Any] = packaged.environment(shop.folder)
    first = shop.stage.spawn([*argv, "-n", "w0@%h"], **env)
    run = shop.run("read")
    shop.at("second")
    kill(first)
    shop.go()
    shop.stage.spawn([*argv, "-n", "w1@%h"], **env)
    shop.stage.reaches(run, RunStatus.COMPLETED)

    assert shop.words == ["first", "second", "second", "third"]
