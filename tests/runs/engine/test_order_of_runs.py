"""Which run a worker drives: the claim in the database decides, and suspects are tried one at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from runs import chaos, tasks
from runs.lifecycle import suspects, suspicion, transitions
from runs.lifecycle.suspicion import Suspected
from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus
from runs.worker.sweep import end_waits
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted
from tests.support.run_checks import check, events

pytestmark = pytest.mark.django_db(transaction=True)


def dies_with_its_worker(*runs: AgentRun, owner: str = "dead:1:x") -> None:
    for run in runs:
        assert transitions.claim(run.pk, owner)
    assert transitions.expire_leases(owner) == len(runs)


def test_a_message_for_a_run_held_by_another_worker_does_nothing(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted()
    assert transitions.claim(run.pk, "other:1:x")

    assert not worker.drive(run.pk)

    run.refresh_from_db()
    assert (run.status, run.lease_owner) == (RunStatus.RUNNING, "other:1:x")


def test_a_dead_worker_s_run_precedes_the_queue(scripted: MakeScripted) -> None:
    """Its queue time is from before the worker claimed it; a run whose slice ended goes behind the waiting runs."""
    lost, waiting = scripted(), scripted()
    dies_with_its_worker(lost)
    AgentRun.objects.filter(pk=waiting.pk).update(queued_at=Now() - timedelta(seconds=1))
    AgentRun.objects.filter(pk=lost.pk).update(queued_at=Now() - timedelta(seconds=2))

    assert list(AgentRun.objects.runnable()) == [lost, waiting]


def at_point(monkeypatch: pytest.MonkeyPatch, name: str, hit: int, act: Callable[[], None]) -> None:
    """Call a function when the drive reaches a crash point for the `hit`th time."""
    left = [name] * hit

    def point(passed: str) -> None:
        if passed in left:
            left.remove(passed)
            if not left:
                act()

    monkeypatch.setattr(chaos, "point", point)


def test_the_runs_of_a_dead_worker_are_tried_one_at_a_time(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first run makes its step, this worker refuses the second and takes an innocent run."""
    first, second, innocent = scripted(), scripted(), scripted()
    driven: list[bool] = []

    def drive_others() -> None:
        driven.extend(worker.drive(run.pk) for run in (second, innocent))

    dies_with_its_worker(first, second)
    at_point(monkeypatch, "model.before_call", 1, drive_others)

    assert worker.drive(first.pk)

    assert driven == [False, True]
    statuses = dict(AgentRun.objects.values_list("pk", "status"))
    assert statuses == {
        first.pk: RunStatus.COMPLETED,
        second.pk: RunStatus.RUNNING,
        innocent.pk: RunStatus.COMPLETED,
    }
    assert worker.drive(second.pk)
    for run in (first, second, innocent):
        check(run)


def test_another_worker_may_try_a_suspect_at_the_same_time(scripted: MakeScripted) -> None:
    first, second = scripted(), scripted()
    dies_with_its_worker(first, second)

    assert transitions.claim(first.pk, "one:1:x")
    with pytest.raises(Suspected):
        transitions.claim(second.pk, "one:1:x")
    assert transitions.claim(second.pk, "two:2:x")


@pytest.mark.parametrize(("calls", "is_on_trial"), [(1, True), (2, False)])
def test_a_step_clears_a_suspect(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch, calls: int, is_on_trial: bool
) -> None:
    """In its second model call the run is still held, but the worker may try the next suspect."""
    first, second = scripted(calls=[["ledger_read"]]), scripted()
    driven: list[bool] = []
    dies_with_its_worker(first, second)
    at_point(monkeypatch, "model.before_call", calls, lambda: driven.append(worker.drive(second.pk)))

    assert worker.drive(first.pk)

    assert driven == [not is_on_trial]


def test_a_long_trial_blocks_the_next_one_for_half_a_lease(scripted: MakeScripted, worker: Worker) -> None:
    first, second = scripted(), scripted()
    dies_with_its_worker(first, second)
    assert transitions.claim(first.pk, worker.owner)
    assert suspicion.has_trial(worker.owner)

    Attempt.objects.filter(run=first, ended_at=None).update(claimed_at=Now() - timedelta(seconds=11))

    assert not suspicion.has_trial(worker.owner)
    assert worker.drive(second.pk)


def test_a_run_waits_after_two_deaths_in_a_step_before_it_is_tried_alone(
    scripted: MakeScripted, die_at: DieAt, worker: Worker
) -> None:
    run = scripted(calls=[["ledger_read"]])
    for _ in range(2):
        assert die_at(run, "model.before_call")

    assert not worker.drive(run.pk)

    run.refresh_from_db()
    assert (run.status, run.status_reason) == (RunStatus.WAITING, "retry_alone")
    check(run)
    AgentRun.objects.filter(pk=run.pk).update(not_before=Now() - timedelta(seconds=1))
    end_waits()
    run.refresh_from_db()
    assert (run.status, run.status_reason) == (RunStatus.QUEUED, "retry_alone")
    with pytest.raises(Suspected) as refused:
        transitions.claim(run.pk, worker.owner)
    assert (refused.value.is_alone, refused.value.lapsed) == (True, False)
    assert [suspects.pause_s(deaths) for deaths in (1, 2, 3, 4, 5, 6)] == [0.0, 5.0, 10.0, 20.0, 40.0, 40.0]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="the plan of the other database says nothing")
def test_the_order_is_read_from_its_index(scripted: MakeScripted) -> None:
    """For any number of waiting or ended runs."""
    scripted()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        plan = AgentRun.objects.runnable()[:50].explain()
        assert "run_order" in plan
        assert "Sort" not in plan
        assert "run_wait_end" in AgentRun.objects.due_waits()[:50].explain()


@pytest.mark.postgres
def test_the_search_for_suspects_reads_the_deaths_once(scripted: MakeScripted) -> None:
    """With thousands of queued runs, it took seconds to count the deaths of each of them."""
    suspect = scripted()
    dies_with_its_worker(suspect)
    for _ in range(20):
        scripted()

    with CaptureQueriesContext(connection) as captured:
        assert [run.pk for run in suspects.waiting(2)] == [suspect.pk]
    [sql] = [query["sql"] for query in captured]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN ANALYZE {sql}")
        plan = "\n".join(row[0] for row in cursor.fetchall())

    scans = re.findall(r"agent_run_attempts.*loops=(\d+)", plan)
    assert scans, plan
    assert max(map(int, scans)) <= 2, plan


def test_the_second_message_for_the_same_claim_does_nothing(
    scripted: MakeScripted, worker: Worker, settings: Settings
) -> None:
    """Otherwise a run with a duplicate message would have two turns in each round."""
    settings.AGENTOPS_SLICE_S = 0.0
    run = scripted(calls=[["ledger_read"]] * 3)

    assert worker.drive(run.pk, {"lease_epoch": 0})
    assert not worker.drive(run.pk, {"lease_epoch": 0})
    assert worker.drive(run.pk, {"lease_epoch": 1})

    assert Attempt.objects.filter(run=run).count() == 2


def test_a_claim_without_an_answer_is_not_mistaken_for_the_claim_of_another_thread(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two messages name one run, and the database goes away in the second claim: the run is still driven once."""
    run = scripted(calls=[["ledger_idempotent"]])
    driven: list[bool | None] = []

    def point(passed: str) -> None:
        if passed == "model.before_call" and not driven:
            driven.append(None)
            driven[0] = worker.drive(run.pk)
        elif passed == "claim.before" and driven == [None]:
            raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(chaos, "point", point)

    assert worker.drive(run.pk)

    assert driven == [False]
    check(run)
    assert Attempt.objects.get(run=run).end_reason != "died"
    assert [event.type for event in events(run)].count("llm.turn.start") == 2


def test_a_message_in_a_queue_that_the_run_left_does_nothing(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker without a GPU would get runs that were moved to the GPU queue."""
    monkeypatch.setattr("runs.worker.worker.current", lambda: worker)
    run = scripted(calls=[["ledger_read"]])
    AgentRun.objects.filter(pk=run.pk).update(queue="gpu")

    tasks.advance.apply(args=[str(run.pk)], routing_key="default", throw=True)
    assert not Attempt.objects.filter(run=run).exists()

    tasks.advance.apply(args=[str(run.pk)], routing_key="gpu", throw=True)
    assert Attempt.objects.filter(run=run).exists()


def test_a_message_carries_the_epoch_of_the_released_run(
    scripted: MakeScripted, worker: Worker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTOPS_SLICE_S = 0.0
    sent: list[int] = []
    monkeypatch.setattr(transitions, "wake", lambda run: sent.append(run.lease_epoch))
    run = scripted(calls=[["ledger_read"]] * 3)

    while worker.drive(run.pk):
        pass

    assert sent == list(range(1, len(sent) + 1))
    assert len(sent) == 3
