"""Test that Redis can fail: a lost or duplicated message delays a run but has no other effect."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
import redis
from celery import Celery
from celery.fixups.django import DjangoWorkerFixup
from django.conf import settings
from django.db import connection

from agentops.accounts.keys import create_key
from agentops.accounts.models import Role
from agentops.celery import app as celery_app
from runs.lifecycle import inbox
from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus
from tests.support.child_processes import ChildProcess
from tests.support.databases import OwnRedis
from tests.support.factories import make_person, session_of
from tests.support.run_checks import check, events
from tests.support.stage import Stage
from tests.support.suite_fixtures import MakeWeb
from tests.support.timing import eventually

pytestmark = pytest.mark.redis

#: No worker dies in these tests. With the usual lease of two seconds, a busy machine could make one look dead.
LONG_LEASE = {"AGENTOPS_LEASE_S": "20"}
SLOW = [["ledger_read"], ["ledger_idempotent"], ["ledger_once"]]


def all_well(stage: Stage, runs: list[AgentRun]) -> None:
    """Check that every run completed under its first worker, and that each tool ran once."""
    for run in runs:
        stage.reaches(run, RunStatus.COMPLETED)
        check(run)
        assert "run.recovered" not in [event.type for event in events(run)]
        done = [effect.call_id for effect in stage.effects() if effect.run == str(run.pk)]
        assert sorted(done) == sorted(set(done))


def test_runs_survive_a_restart_of_redis(stage: Stage, own_redis: OwnRedis) -> None:
    workers = [stage.worker(**LONG_LEASE), stage.worker(**LONG_LEASE)]
    beat = stage.beat()
    runs = [stage.run(SLOW, tool_sleep_s=0.7) for _ in range(6)]
    for run in runs:
        own_redis.hint(run.pk)
    eventually(lambda: len(stage.effects()) >= 4, why="runs are under way")
    own_redis.kill()
    lost = [stage.run(), stage.run()]  # queued while no worker could be notified
    time.sleep(1)
    own_redis.start()

    all_well(stage, [*runs, *lost])
    assert all(worker.alive for worker in workers), [worker.said() for worker in workers]
    assert beat.alive, beat.said()


def test_a_worker_receives_hints_again_after_a_restart_of_redis(stage: Stage, own_redis: OwnRedis) -> None:
    worker = stage.worker(AGENTOPS_SWEEP_S="600")
    eventually(lambda: "[queues]" in worker.said(), why="the worker is up")
    for _ in range(2):
        run = stage.run()
        own_redis.hint(run.pk)
        # The worker does not sweep during the test, so only the hint can have brought the run there.
        stage.reaches(run, RunStatus.COMPLETED)
        own_redis.kill()
        time.sleep(1)
        own_redis.start()
    run = stage.run()
    eventually(lambda: _heard(own_redis, run), why="the worker hears hints again")
    assert worker.alive


def _heard(own_redis: OwnRedis, run: AgentRun) -> bool:
    own_redis.hint(run.pk)
    time.sleep(1)
    run.refresh_from_db()
    return run.status == RunStatus.COMPLETED


def test_active_runs_continue_without_redis_and_queued_ones_wait(stage: Stage, own_redis: OwnRedis) -> None:
    """While no message can be sent, no run is returned to the queue, even if other runs wait."""
    worker = stage.worker(AGENTOPS_SLICE_S="0.5", **LONG_LEASE)
    begun = [stage.run(SLOW, tool_sleep_s=0.7) for _ in range(3)]
    for run in begun:
        own_redis.hint(run.pk)
    eventually(lambda: {effect.run for effect in stage.effects()} == ids(begun), why="all runs are under way")
    own_redis.kill()
    queued = [stage.run() for _ in range(3)]

    all_well(stage, begun)
    for run in queued:
        run.refresh_from_db()
        assert (run.status, run.lease_epoch) == (RunStatus.QUEUED, 0)
    assert worker.alive, worker.said()
    own_redis.start()
    all_well(stage, queued)


def test_a_worker_started_without_redis_waits_for_it(stage: Stage, own_redis: OwnRedis) -> None:
    own_redis.kill()
    worker = stage.worker(**LONG_LEASE)
    runs = [stage.run() for _ in range(3)]
    eventually(lambda: "Cannot connect to" in worker.said(500), why="it has looked for Redis")
    own_redis.start()

    all_well(stage, runs)
    assert worker.alive, worker.said()


def ids(runs: list[AgentRun]) -> set[str]:
    return {str(run.pk) for run in runs}


def test_sigterm_ends_a_worker_without_redis(stage: Stage, own_redis: OwnRedis) -> None:
    worker = stage.worker(AGENTOPS_GRACE_S="1")
    all_well(stage, [stage.run()])
    own_redis.kill()
    time.sleep(1)
    worker.signal(stage.TERM)

    assert worker.wait(within_s=15, why="ended by SIGTERM without a broker") == 0


@pytest.fixture
def lost_worker(stage: Stage, own_redis: OwnRedis) -> ChildProcess:
    """Start a worker that loses its connection while its only slot is occupied and a message waits for the slot."""
    worker = stage.worker(slots=1, AGENTOPS_SWEEP_S="600", AGENTOPS_GRACE_S="1")
    eventually(lambda: "[queues]" in worker.said(), why="the worker is up")
    with Celery("holds", broker=own_redis.url) as app:
        app.send_task("tests.hold", queue="default", priority=6, retry=False)
    eventually((stage.home / "held").exists, why="the place is taken")
    own_redis.hint(uuid4())
    own_redis.kill()
    eventually(lambda: "Cannot connect to" in worker.said(), why="the worker has noticed")
    (stage.home / "let_go").touch()
    return worker


def test_a_slot_freed_without_a_connection_is_used_after_reconnecting(
    stage: Stage, own_redis: OwnRedis, lost_worker: ChildProcess
) -> None:
    """Celery acknowledges the finished task on a closed connection; that must not end the worker."""
    own_redis.start()
    run = stage.run()
    eventually(lambda: _heard(own_redis, run), why="the worker hears hints again")
    lost_worker.signal(stage.TERM)

    assert lost_worker.wait(within_s=20, why="ended by SIGTERM") == 0
    assert "AttributeError" not in lost_worker.said(500)
    check(run)


def test_a_busy_worker_leaves_messages_to_other_workers(stage: Stage, own_redis: OwnRedis) -> None:
    """A message without a free slot stays in Redis, and another worker takes it."""
    busy = stage.worker(slots=1, AGENTOPS_SWEEP_S="600")
    eventually(lambda: "[queues]" in busy.said(), why="the worker is up")
    with Celery("holds", broker=own_redis.url) as app:
        app.send_task("tests.hold", queue="default", priority=6, retry=False)
    eventually((stage.home / "held").exists, why="its place is taken")
    run = stage.run()
    own_redis.hint(run.pk)

    # The worker does not sweep during the test, so only the message can have brought the run there.
    other = stage.worker(slots=1, AGENTOPS_SWEEP_S="600")
    stage.reaches(run, RunStatus.COMPLETED)
    assert Attempt.objects.get(run=run).owner.split(":")[1] == str(other.pid)
    (stage.home / "let_go").touch()


def test_a_run_is_claimed_once_for_any_number_of_hints(stage: Stage, own_redis: OwnRedis) -> None:
    """Of ten hints, nine have no effect."""
    runs = [stage.run(SLOW, tool_sleep_s=0.2) for _ in range(4)]
    for run in runs:
        own_redis.hint(run.pk, times=10)
    workers = [stage.worker(**LONG_LEASE), stage.worker(**LONG_LEASE)]

    all_well(stage, runs)
    for run in runs:
        own_redis.hint(run.pk, times=10)
    time.sleep(1)
    for run in runs:
        run.refresh_from_db()
        assert run.lease_epoch == 1
        assert Attempt.objects.filter(run=run).count() == 1
        assert len([effect for effect in stage.effects() if effect.run == str(run.pk)]) == 3
    assert all(worker.alive for worker in workers)


def test_runs_survive_five_restarts_in_a_row_and_an_emptied_redis(stage: Stage, own_redis: OwnRedis) -> None:
    """The sweep finds queued runs in the database."""
    workers = [stage.worker(**LONG_LEASE), stage.worker(**LONG_LEASE)]
    runs = [stage.run(SLOW, tool_sleep_s=0.5) for _ in range(6)]
    for run in runs:
        own_redis.hint(run.pk)
    eventually(lambda: len(stage.effects()) >= 2, why="runs are under way")
    for _ in range(5):
        own_redis.kill()
        runs.append(stage.run())  # queued while no worker could be notified
        own_redis.start()
        runs.append(stage.run())
        own_redis.hint(runs[-1].pk)
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()

    all_well(stage, runs)
    assert all(worker.alive for worker in workers), [worker.said() for worker in workers]


@pytest.mark.parametrize("silent", [False, True], ids=["gone", "silent"])
def test_resume_is_accepted_without_redis(
    stage: Stage, own_redis: OwnRedis, web_process: MakeWeb, silent: bool
) -> None:
    """The page and the API accept it without waiting for Redis; the run continues when Redis is back."""
    web = web_process()
    stage.worker()
    by_page, by_api = stage.run(), stage.run()
    for run in (by_page, by_api):
        inbox.pause(run.pk, by="test")
    if silent:
        own_redis.suspend()
    else:
        own_redis.kill()
    key = create_key(by_api.project, name="robot", scopes=["write"], actor="test")
    session = session_of(make_person(by_page.project, Role.OPERATOR))
    cookies = {settings.SESSION_COOKIE_NAME: session, settings.CSRF_COOKIE_NAME: "a" * 32}

    with (
        httpx.Client(base_url=web.url, timeout=20, cookies=cookies) as browser,
        httpx.Client(base_url=web.url, timeout=20) as caller,
    ):
        path = f"/api/projects/{by_api.project.slug}/agent-runs/{by_api.pk}/resume"
        answer = caller.post(path, json={}, headers={"Authorization": f"Bearer {key.plain}"})
        assert answer.status_code == 201, answer.text
        form = {"csrfmiddlewaretoken": "a" * 32}
        click = browser.post(f"/runs/{by_page.pk}/resume", data=form, headers={"Origin": web.url})
        assert click.status_code in (302, 303), click.text
    resumed = [AgentRun.objects.get(resumed_from=old) for old in (by_page, by_api)]
    assert [(run.status, run.lease_epoch) for run in resumed] == [(RunStatus.QUEUED, 0)] * 2
    if silent:
        own_redis.go_on()
    else:
        own_redis.start()
    for run in resumed:
        stage.reaches(run, RunStatus.COMPLETED)


def test_a_worker_runs_with_a_redis_that_refuses_client_commands(stage: Stage, tmp_path: Path) -> None:
    """Restricted accounts and proxies refuse them. The worker then cannot unblock BRPOP and waits for its timeout."""
    stage.redis = server = OwnRedis(tmp_path, options=["--rename-command", "CLIENT", ""])
    server.start()
    try:
        worker = stage.worker(slots=1, AGENTOPS_SWEEP_S="600")
        eventually(lambda: "[queues]" in worker.said(), why="the worker is up")
        runs = [stage.run() for _ in range(2)]
        for run in runs:
            server.hint(run.pk)
        all_well(stage, runs)
        assert worker.alive
    finally:
        stage.close()
        server.kill()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_hint_does_not_close_the_pool_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery would close it before and after each task, while threads of the same process use it for runs."""
    fixup = DjangoWorkerFixup(celery_app)
    monkeypatch.setattr(fixup, "_is_prefork", lambda: True)
    connection.ensure_connection()
    pool = connection.pool
    hint = SimpleNamespace(request=SimpleNamespace(is_eager=False))
    fixup.on_task_prerun(hint)
    fixup.on_task_postrun(hint)

    assert connection.connection is None, "the task's own connection is given back"
    assert connection.pool is pool
    assert not pool.closed
