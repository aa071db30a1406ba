"""The thread of a worker that takes runs: it goes on when something fails, because nobody else takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection
from pytest_django import Settings

from runs import chaos
from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.factories import make_run
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sweeping(transactional_db: None, settings: Settings) -> Iterator[Worker]:
    settings.AGENTOPS_SWEEP_S = 0.1
    worker = Worker(concurrency=1)
    worker.start_sweeping()
    # The last of its threads.
    eventually(lambda: "export" in {thread.name for thread in threading.enumerate()}, why="the worker has not begun")
    yield worker
    worker.close(30)


def test_a_thread_that_cannot_be_started_costs_no_slot_and_no_sweep(
    sweeping: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the machine or the container has no room for another one, for a moment."""
    usual = threading.stack_size(1 << 46)
    try:
        run = make_run()
        eventually(lambda: "can't start new thread" in caplog.text, why="no thread was needed")
    finally:
        threading.stack_size(usual)

    eventually(lambda: AgentRun.objects.get(pk=run.pk).state is RunStatus.COMPLETED, why="nobody takes the run")


@pytest.fixture
def busy_pool() -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
    """A pool of threads of which one is busy until the event is set."""
    let_go = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(let_go.wait, 60)
        yield pool, let_go
        let_go.set()


def test_a_call_that_the_pool_has_kept_is_not_made_without_a_slot(
    busy_pool: tuple[ThreadPoolExecutor, threading.Event],
) -> None:
    """The pool takes a call before it starts a thread for it: another thread would make it, when it becomes free."""
    pool, let_go = busy_pool
    run, worker, usual = make_run(), Worker(concurrency=2), threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            worker.sweep_once(pool)
    finally:
        threading.stack_size(usual)

    assert worker.free() == 2
    let_go.set()
    pool.shutdown()
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.QUEUED
    worker.close(30)


def test_a_suspect_that_cannot_be_set_aside_costs_no_slot(
    busy_pool: tuple[ThreadPoolExecutor, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two whose worker died is tried, the second waits; the database fails when that is written."""
    pool, let_go = busy_pool
    for run in (make_run(), make_run()):
        transitions.claim(run.pk, "dead")
    transitions.expire_leases("dead")
    pool.submit(let_go.wait, 60)  # nothing is driven meanwhile
    worker, seen = Worker(concurrency=2), []

    def fail(execute: Any, sql: str, *rest: Any) -> Any:
        if len(seen) == 2:
            raise OperationalError("the server has gone away")
        return execute(sql, *rest)

    monkeypatch.setattr(chaos, "point", lambda name: seen.append(name) if name == "sweep.run_seen" else None)
    with connection.execute_wrapper(fail), pytest.raises(OperationalError):
        worker.sweep_once(pool)

    assert worker.free() == 1
    let_go.set()
    pool.shutdown()
    assert worker.free() == 2
    worker.close(30)
