"""The broker dies, comes back, or stays away: a hint that is lost or doubled costs time and nothing else."""

from __future__ import annotations

import time
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
import redis
from celery import Celery
from celery.fixups.django import DjangoWorkerFixup
from django.conf import settings
from django.db import connection

from agentops.celery import app as celery_app
from agentops.projects.keys import create_key
from agentops.projects.models import Role
from runs.lifecycle import inbox
from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus
from tests.support.accounts import make_person, session_of
from tests.support.plugins.web_fixtures import MakeWeb
from tests.support.processes.child_processes import ChildProcess
from tests.support.processes.redis_server import OwnRedis
from tests.support.processes.stage import Stage
from tests.support.run_checks import check, events
from tests.support.waiting import eventually

pytestmark = pytest.mark.redis

#: No worker dies here. A busy machine must not make one look dead, as it may with the two seconds of the other tests.
LONG_LEASE = {"AGENTOPS_LEASE_S": "20"}
SLOW = [["ledger_read"], ["ledger_idempotent"], ["ledger_once"]]


def all_well(stage: Stage, runs: list[AgentRun]) -> None:
    """Every run completed in the hands of its first worker, each tool run once."""
    for run in runs:
        stage.reaches(run, RunStatus.COMPLETED)
        check(run)
        assert "run.recovered" not in [event.type for event in events(run)]
        done = [effect.call_id for effect in stage.effects() if effect.run == str(run.pk)]
        assert sorted(done) == sorted(set(done))


def test_it_survives_a_restart_of_redis(stage: Stage, own_redis: OwnRedis) -> None:
    workers = [stage.worker(**LONG_LEASE), stage.worker(**LONG_LEASE)]
    beat = stage.beat()
    runs = [stage.run(SLOW, tool_sleep_s=0.7) for _ in range(6)]
    for run in runs:
        own_redis.hint(run.pk)
    eventually(lambda: len(stage.effects()) >= 4, why="runs are under way")
    own_redis.kill()
    lost = [stage.run(), stage.run()]  # queued while nobody could be told
    time.sleep(1)
    own_redis.start()

    all_well(stage, [*runs, *lost])
    assert all(worker.alive for worker in workers), [worker.said() for worker in workers]
    assert beat.alive, beat.said()


def test_it_hears_hints_again_after_a_restart_of_redis(stage: Stage, own_redis: OwnRedis) -> None:
    worker = stage.worker(AGENTOPS_SWEEP_S="600")
    eventually(lambda: "[queues]" in worker.said(), why="the worker is up")
    for _ in range(2):
        run = stage.run()
        own_redis.hint(run.pk)
        # No sweep within the test: only the hint can have brought it there.
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


def test_it_goes_on_without_redis(stage: Stage, own_redis: OwnRedis) -> None:
    first = stage.worker(**LONG_LEASE)
    begun = [stage.run(SLOW, tool_sleep_s=0.7) for _ in range(3)]
    eventually(stage.effects, why="runs are under way")
    own_redis.kill()
    queued = [stage.run() for _ in range(3)]

    all_well(stage, [*begun, *queued])
    assert first.alive, first.said()
    # And a worker that has never seen a broker works too.
    first.end()
    second = stage.worker(**LONG_LEASE)
    began = time.monotonic()
    all_well(stage, [stage.run() for _ in range(3)])
    print(f"a worker that was started without a broker: three runs in {time.monotonic() - began:.2f} s")
    assert second.alive, second.said()


def test_it_ends_on_sigterm_without_redis(stage: Stage, own_redis: OwnRedis) -> None:
    worker = stage.worker(AGENTOPS_GRACE_S="1")
    all_well(stage, [stage.run()])
    own_redis.kill()
    time.sleep(1)
    worker.signal(stage.TERM)

    assert worker.wait(within_s=15, why="ended by SIGTERM without a broker") == 0


@pytest.fixture
def waiting_hint(stage: Stage, own_redis: OwnRedis) -> ChildProcess:
    """A worker that has received a hint, whose only thread of Celery is busy, and that has lost its connection since.

    Then the thread becomes free, accepts the hint, and so acknowledges it.
    """
    worker = stage.worker(slots=1, AGENTOPS_SWEEP_S="600", AGENTOPS_GRACE_S="1")
    eventually(lambda: "[queues]" in worker.said(), why="the worker is up")
    with Celery("holds", broker=own_redis.url) as app:
        app.send_task("tests.hold", queue="agentops", retry=False)
    eventually((stage.home / "held").exists, why="the thread is busy")
    own_redis.hint(uuid4())
    with redis.Redis.from_url(own_redis.url) as client:
        eventually(lambda: client.llen("agentops") == 0, why="the worker has the hint")
    own_redis.kill()
    eventually(lambda: "Cannot connect to" in worker.said(), why="the worker has noticed")
    (stage.home / "let_go").touch()
    return worker


def test_a_hint_that_is_acknowledged_after_its_connection_was_lost_ends_no_worker(
    stage: Stage, own_redis: OwnRedis, waiting_hint: ChildProcess
) -> None:
    own_redis.start()
    run = stage.run()
    eventually(lambda: _heard(own_redis, run), why="the worker hears hints again")
    waiting_hint.signal(stage.TERM)

    assert waiting_hint.wait(within_s=20, why="ended by SIGTERM") == 0
    assert "AttributeError" not in waiting_hint.said(500)
    check(run)


def test_it_claims_a_run_once_for_any_number_of_hints(stage: Stage, own_redis: OwnRedis) -> None:
    """Each of ten hints but one leaves without a trace."""
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


def test_it_survives_five_restarts_in_a_row_and_an_emptied_redis(stage: Stage, own_redis: OwnRedis) -> None:
    """What Redis forgets is found in the database."""
    workers = [stage.worker(**LONG_LEASE), stage.worker(**LONG_LEASE)]
    runs = [stage.run(SLOW, tool_sleep_s=0.5) for _ in range(6)]
    for run in runs:
        own_redis.hint(run.pk)
    eventually(lambda: len(stage.effects()) >= 2, why="runs are under way")
    for _ in range(5):
        own_redis.kill()
        runs.append(stage.run())  # queued while nobody could be told
        own_redis.start()
        runs.append(stage.run())
        own_redis.hint(runs[-1].pk)
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()

    all_well(stage, runs)
    assert all(worker.alive for worker in workers), [worker.said() for worker in workers]


@pytest.mark.parametrize("silent", [False, True], ids=["gone", "silent"])
def test_a_click_on_resume_counts_without_redis(
    stage: Stage, own_redis: OwnRedis, web_process: MakeWeb, silent: bool
) -> None:
    """Accepted by the page and by the API, and acted on by the sweep; Redis is not waited for."""
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
    for old in (by_page, by_api):
        stage.reaches(AgentRun.objects.get(resumed_from=old), RunStatus.COMPLETED)
    if silent:
        own_redis.go_on()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_hint_leaves_the_pool_of_a_fork_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery would close it before and after each task, while threads of the same process drive runs by it."""
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
