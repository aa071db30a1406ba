"""Test the worker under Celery's command with each pool: inspection, and the effect of a killed slice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.app.control import Inspect

from runs.models import AgentRun, Attempt, WorkerProcess
from runs.statuses import RunStatus
from runs.worker import startup
from tests.support.child_processes import ChildProcess
from tests.support.databases import OwnRedis
from tests.support.run_checks import check
from tests.support.stage import Stage
from tests.support.timing import eventually

pytestmark = [pytest.mark.redis, pytest.mark.postgres]
POOLS = ("threads", "prefork")
#: Steps of half a second, so that a slice outlasts an inspection.
LONG = [["ledger_read"]] * 40
#: Long enough that no worker looks dead on a busy machine.
LONG_LEASE = {"AGENTOPS_LEASE_S": "20", "AGENTOPS_RENEW_S": "0.5"}

Inspected = Callable[[], set[str]]


@pytest.fixture
def active(own_redis: OwnRedis) -> Inspected:
    """Return a function that lists the runs in `celery inspect active`."""

    def ask() -> set[str]:
        with Celery("inspector", broker=own_redis.url) as app:
            answers = Inspect(app=app, timeout=2).active() or {}
        tasks = [task for tasks in answers.values() for task in tasks]
        return {task["args"][0] for task in tasks if task["type"] == "runs.advance"}

    return ask


def start(stage: Stage, pool: str, places: int, **env: str) -> ChildProcess:
    name = f"w{len(stage.workers)}@%h"
    argv = ["-A", "agentops", "worker", "--pool", pool, "-c", str(places), "--beat", "-n", name]
    worker = stage.spawn(argv, **LONG_LEASE | env)
    eventually(lambda: "[queues]" in worker.said(), within_s=60, why="the worker is up")
    return worker


def slice_of(run: AgentRun, app: Celery) -> str:
    """Return the ID of the task that drives a run."""
    [tasks] = (Inspect(app=app, timeout=2).active() or {}).values()
    [task_id] = [task["id"] for task in tasks if task["args"] == [str(run.pk)]]
    return str(task_id)


def at_work(*runs: AgentRun) -> set[str]:
    return {str(run.pk) for run in runs}


@pytest.mark.parametrize("pool", POOLS)
def test_inspect_lists_exactly_the_active_runs(stage: Stage, own_redis: OwnRedis, active: Inspected, pool: str) -> None:
    """Eight runs are active; two wait in Redis, where another worker could take them."""
    runs = [stage.run(LONG, tool_sleep_s=0.5, max_steps=50) for _ in range(10)]
    worker = start(stage, pool, 8)
    eventually(lambda: len(active()) == 8, within_s=60, why="eight runs are at work")

    assert active() <= at_work(*runs)
    with redis.Redis.from_url(own_redis.url) as client:
        assert client.llen("default\x06\x166") == 2
    assert AgentRun.objects.filter(status=RunStatus.RUNNING).count() == 8
    assert "WARNING" not in worker.said(), worker.said()
    assert set(WorkerProcess.objects.values_list("queues", flat=True)[0]) == {"default"}


@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_takes_runs_that_a_busy_one_leaves(
    stage: Stage, own_redis: OwnRedis, active: Inspected, pool: str
) -> None:
    first, second = (stage.run(LONG, tool_sleep_s=0.5) for _ in range(2))
    start(stage, pool, 1)
    eventually(lambda: len(active()) == 1, within_s=60, why="the first run is at work")

    start(stage, pool, 1)

    eventually(lambda: active() == at_work(first, second), within_s=60, why="both runs are at work")
    assert Attempt.objects.filter(ended_at=None).values("owner").distinct().count() == 2


def test_a_killed_child_only_costs_a_lease(stage: Stage, own_redis: OwnRedis) -> None:
    """Its siblings continue, and Celery forks a new child."""
    killed, other = (stage.run(tool_sleep_s=0.5) for _ in range(2))
    start(stage, "prefork", 2, AGENTOPS_LEASE_S="2")
    eventually(lambda: Attempt.objects.filter(ended_at=None).count() == 2, within_s=60, why="both runs are at work")
    owner = Attempt.objects.get(run=killed, ended_at=None).owner

    os.kill(int(owner.split(":")[1]), signal.SIGKILL)

    for run in (killed, other):
        stage.reaches(run, RunStatus.COMPLETED)
        check(run)
    assert Attempt.objects.filter(run=killed, end_reason="died").count() == 1
    assert not Attempt.objects.filter(run=other, end_reason="died").exists()


def test_a_revoked_slice_only_costs_a_lease(stage: Stage, own_redis: OwnRedis, active: Inspected) -> None:
    """`celery control revoke --terminate` kills the child. The next message of the run has a different ID."""
    run = stage.run(LONG, tool_sleep_s=0.5)
    start(stage, "prefork", 2, AGENTOPS_LEASE_S="2", AGENTOPS_CELERY_CONTROL="true")
    eventually(lambda: active() == at_work(run), within_s=60, why="the run is at work")
    with Celery("operator", broker=own_redis.url) as app:
        app.control.revoke(slice_of(run, app), terminate=True, signal="SIGKILL")
    eventually(lambda: Attempt.objects.filter(run=run).count() > 1, why="the run continues")

    stage.reaches(run, RunStatus.COMPLETED)

    check(run)
    assert Attempt.objects.filter(run=run, end_reason="died").count() == 1


def test_the_solo_pool_works(stage: Stage, own_redis: OwnRedis) -> None:
    """It handles one message at a time, including maintenance messages."""
    runs = [stage.run() for _ in range(3)]
    worker = start(stage, "solo", 1)
    for run in runs:
        stage.reaches(run, RunStatus.COMPLETED)
        check(run)
    worker.signal(stage.TERM)
    assert worker.wait(within_s=60, why="ended by SIGTERM") == 0


@pytest.mark.parametrize("pool", POOLS)
def test_sigterm_requeues_runs_at_once(stage: Stage, own_redis: OwnRedis, active: Inspected, pool: str) -> None:
    """The runs do not wait for their leases to expire: a message is sent at once, and another worker continues them."""
    run = stage.run(LONG, tool_sleep_s=0.2)
    first = start(stage, pool, 2)
    eventually(lambda: active() == at_work(run), within_s=60, why="the run is at work")
    first.signal(stage.TERM)
    assert first.wait(within_s=60, why="ended by SIGTERM") == 0
    run.refresh_from_db()
    assert run.status == RunStatus.QUEUED
    assert not WorkerProcess.objects.exists()

    start(stage, pool, 2)
    eventually(lambda: active() == at_work(run), within_s=60, why="the run is at work again")
    assert not Attempt.objects.filter(run=run, end_reason="died").exists()


def test_a_stop_survives_the_birth_of_a_child(stage: Stage, own_redis: OwnRedis) -> None:
    """A child that is told to stop before it is ready hands back its runs like the others, and the worker exits with 0.

    A child that the signal had killed at birth would end the worker with an error.
    """
    worker = stage.spawn(["-A", "agentops", "worker", "--pool", "prefork", "-c", "4"], **LONG_LEASE)
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    told: set[str] = set()

    until = time.monotonic() + 60
    # Without a pause, because a child is ready within milliseconds.
    while len(told) < 4:
        assert time.monotonic() < until, worker.said()
        for pid in set(children.read_text().split()) - told:
            told.add(pid)
            os.kill(int(pid), startup.END_OF_CHILD)
    with Celery("operator", broker=own_redis.url) as app:
        eventually(
            lambda: not worker.alive or Inspect(app=app, timeout=1).ping(), why="the worker is ready, or has ended"
        )
    assert worker.alive, worker.said()
    worker.signal(stage.TERM)

    assert worker.wait(within_s=60, why="ended by SIGTERM") == 0


def test_prefork_without_redis_is_refused(stage: Stage) -> None:
    """Its processes share no memory, so no message would reach them."""
    worker = stage.spawn(["-A", "agentops", "worker", "--pool", "prefork"])
    assert worker.wait(within_s=60, why="refused") != 0
    assert "prefork needs REDIS_URL" in worker.said()
