"""Which run a free slot takes: the database's order decides, whatever hint woke the worker; suspects one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from runs import tasks
from runs.lifecycle import suspects, transitions
from runs.models import AgentRun, Attempt
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from runs.worker import worker as workers
from runs.worker.worker import Worker
from tests.support.engine.fixture_types import DieAt, MakeScripted
from tests.support.processes.scripted_model import Move
from tests.support.run_checks import check

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def one_slot(transactional_db: None) -> Iterator[Worker]:
    worker = Worker(concurrency=1)
    yield worker
    worker.close(0.5)  # some tests leave slots taken by runs that nobody drives


@pytest.fixture
def worker(transactional_db: None) -> Iterator[Worker]:
    worker = Worker(concurrency=4)
    yield worker
    worker.close(0.5)


@pytest.fixture
def busy_pool() -> Iterator[ThreadPoolExecutor]:
    """What is given to it does not begin before the test is over: then it finds nothing to drive."""
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gate.wait, 60)
        yield pool
        pool.shutdown(wait=False, cancel_futures=True)
        gate.set()


def claimed_in_order() -> list[UUID]:
    return list(Attempt.objects.order_by("claimed_at").values_list("run", flat=True))


def dies_with_its_worker(*runs: AgentRun, owner: str = "dead:1:x") -> None:
    for run in runs:
        assert transitions.claim(run.pk, owner)
    assert transitions.expire_leases(owner) == len(runs)


def test_a_worker_without_a_free_slot_does_not_search_for_runs(
    scripted: MakeScripted, one_slot: Worker, worker: Worker, busy_pool: ThreadPoolExecutor
) -> None:
    """The search reads every running run of the site, and a slot that becomes free starts a sweep of its own."""
    scripted(), scripted()
    assert one_slot.sweep_once(busy_pool) == 1

    with CaptureQueriesContext(connection) as of_full:
        assert one_slot.sweep_once(busy_pool) == 0
    with CaptureQueriesContext(connection) as of_free:
        assert worker.sweep_once(busy_pool) == 2

    searches = [[one["sql"] for one in sent if "agent_run_attempts" in one["sql"]] for sent in (of_full, of_free)]
    assert [len(one) for one in searches] == [0, 1]


def test_a_hint_does_not_say_what_is_driven_next(
    scripted: MakeScripted, one_slot: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest waiting run comes first, although the hints are all about the others."""
    waiting, told_of = scripted(), [scripted(), scripted()]
    monkeypatch.setattr(workers, "current", lambda: one_slot)
    for run in told_of:
        tasks.advance(str(run.pk))
    assert claimed_in_order() == []

    while one_slot.sweep_once():
        pass

    assert claimed_in_order() == [waiting.pk, *(run.pk for run in told_of)]


def test_a_hint_to_a_worker_without_a_free_slot_is_passed_on(
    scripted: MakeScripted, one_slot: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[UUID, int]] = []
    monkeypatch.setattr(workers, "current", lambda: one_slot)
    monkeypatch.setattr(tasks, "send", lambda run_id, *, passed: sent.append((run_id, passed)))
    run = scripted()
    tasks.advance(str(run.pk))
    assert sent == []

    def hint(call: ModelCall) -> Iterator[Move]:
        """While the only slot is taken."""
        tasks.advance(str(run.pk))
        tasks.advance(str(run.pk), passed=tasks.MOST_PASSES)
        yield "Done."

    assert one_slot.drive(scripted(hint).pk)

    assert sent == [(run.pk, 1)]


def test_a_dead_workers_run_comes_before_the_queue(scripted: MakeScripted, one_slot: Worker) -> None:
    """It was queued before its worker took it; one whose slice is over goes behind those that wait."""
    lost, waiting = scripted(), scripted()
    dies_with_its_worker(lost)
    AgentRun.objects.filter(pk=waiting.pk).update(queued_at=Now() - timedelta(seconds=1))
    AgentRun.objects.filter(pk=lost.pk).update(queued_at=Now() - timedelta(seconds=2))

    assert [each.run_id for each in suspects.candidates(5)] == [lost.pk, waiting.pk]


def test_slices_are_shared_in_turns(scripted: MakeScripted, one_slot: Worker, settings: Settings) -> None:
    settings.AGENTOPS_SLICE_S = 0.0
    runs = [scripted(calls=[["ledger_read"]] * 2) for _ in range(3)]

    for _ in range(3):
        one_slot.sweep_once()

    order = claimed_in_order()
    assert [order[n : n + 3] for n in (0, 3, 6)] == [[run.pk for run in runs]] * 3


def test_no_run_is_taken_into_stock(scripted: MakeScripted, one_slot: Worker, busy_pool: ThreadPoolExecutor) -> None:
    """A choice made while every slot is taken would be an old one by the time a slot is free."""
    for _ in range(3):
        scripted()

    assert [one_slot.sweep_once(busy_pool) for _ in range(3)] == [1, 0, 0]


def test_suspects_are_tried_one_at_a_time_and_innocent_runs_go_on(
    scripted: MakeScripted, worker: Worker, busy_pool: ThreadPoolExecutor
) -> None:
    """Of the runs of a dead worker one is taken over; the others keep their places, and no lease is left to lie."""
    suspects, innocent = [scripted() for _ in range(3)], scripted()
    places = dict(AgentRun.objects.values_list("pk", "queued_at"))
    dies_with_its_worker(*suspects)

    assert worker.sweep_once(busy_pool) == 2

    aside = AgentRun.objects.filter(status=RunStatus.QUEUED, status_reason="retry_alone")
    assert set(aside.values_list("pk", flat=True)) == {run.pk for run in suspects[1:]}
    assert {pk: at for pk, at in AgentRun.objects.values_list("pk", "queued_at") if pk != innocent.pk} == {
        run.pk: places[run.pk] for run in suspects
    }
    assert worker.sweep_once(busy_pool) == 0
    for run in aside:
        check(run)


def test_a_step_clears_a_suspect_and_lets_the_next_one_in(scripted: MakeScripted, worker: Worker) -> None:
    suspects = [scripted(calls=[["ledger_read"]]) for _ in range(3)]
    dies_with_its_worker(*suspects)

    assert worker.sweep_once() == 3  # one after the other, on this thread

    assert set(AgentRun.objects.values_list("status", flat=True)) == {RunStatus.COMPLETED}
    assert not AgentRun.objects.filter(attempts__end_reason="retry_alone").exists()


def test_after_two_deaths_in_a_step_it_waits_before_it_is_tried_alone(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, busy_pool: ThreadPoolExecutor
) -> None:
    run = scripted(calls=[["ledger_read"]])
    for _ in range(2):
        assert die_at(run, "model.before_call")

    assert worker.sweep_once(busy_pool) == 0

    run.refresh_from_db()
    assert (run.status, run.status_reason) == (RunStatus.WAITING, "retry_alone")
    check(run)
    AgentRun.objects.filter(pk=run.pk).update(not_before=Now() - timedelta(seconds=1))
    assert worker.sweep_once(busy_pool) == 1  # given to the pool, which would start the process
    run.refresh_from_db()
    assert (run.status, run.status_reason) == (RunStatus.QUEUED, "retry_alone")
    assert [suspects.pause_s(deaths) for deaths in (1, 2, 3, 4, 5, 6)] == [0.0, 5.0, 10.0, 20.0, 40.0, 40.0]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="the plan of the other database says nothing")
def test_the_order_is_read_from_its_index(scripted: MakeScripted) -> None:
    """However many runs wait for people, or are over."""
    scripted()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        plan = AgentRun.objects.runnable()[:50].explain()
        assert "run_order" in plan
        assert "Sort" not in plan
        assert "run_wait_end" in AgentRun.objects.due_waits()[:50].explain()
