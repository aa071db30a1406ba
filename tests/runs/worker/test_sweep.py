"""The sweep sends missing messages, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from django.db.models.functions import Now
from django.utils.module_loading import import_string
from pytest_django import Settings

from agentops.base import task_messages
from agentops.base.backing_services import FIRST
from runs.lifecycle import transitions, wake
from runs.models import AgentRun
from runs.worker import sweep
from runs.worker.sweep import ON_ITS_WAY_S, send_missing
from tests.support.factories import make_run

pytestmark = pytest.mark.django_db(transaction=True)
QUEUE, PRIORITY = "default", 6


@pytest.fixture(autouse=True)
def queues(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The queues of this test, empty before and after. They are in memory and are inspected like those in Redis."""
    settings.REDIS_URL = "redis://localhost/0"  # only read here
    monkeypatch.setattr(wake, "can_send", lambda: True)
    empty()
    yield
    empty()


def empty() -> None:
    with import_string(task_messages.CELERY_APP).pool.acquire(block=True) as connection:
        for queue in (QUEUE, "gpu"):
            connection.default_channel.queue_purge(queue)


def taken() -> UUID:
    """Take the next message, as a worker does, and return the run it names."""
    [run_id] = task_messages.oldest(QUEUE, PRIORITY, 1)
    with import_string(task_messages.CELERY_APP).pool.acquire(block=True) as connection:
        connection.default_channel.basic_get(QUEUE, no_ack=True)
    return run_id


def messages(priority: int = PRIORITY, queue: str = QUEUE) -> list[UUID]:
    return task_messages.oldest(queue, priority, 100)


def queued_before(seconds: float, *runs: AgentRun) -> None:
    AgentRun.objects.filter(pk__in=[run.pk for run in runs]).update(queued_at=Now() - timedelta(seconds=seconds))


def test_a_new_run_has_its_message(settings: Settings) -> None:
    run, urgent = make_run(), make_run()
    AgentRun.objects.filter(pk=urgent.pk).update(priority=0)
    assert messages() == [run.pk, urgent.pk]
    queued_before(60, run, urgent)

    assert send_missing() == 1  # the queue of the other priority is empty

    assert (messages(), messages(1)) == ([run.pk, urgent.pk], [urgent.pk])


def test_messages_lost_from_an_empty_queue_are_sent_once() -> None:
    runs = [make_run() for _ in range(3)]
    empty()
    queued_before(60, *runs)

    assert send_missing() == 3
    assert send_missing() == 0

    assert messages() == [run.pk for run in runs]


def test_a_message_older_than_the_head_of_the_queue_was_lost() -> None:
    """Queues are read in order: a younger message at the head means that the older one was already taken.

    The new message goes to the front, or the run would wait a second time behind all others.
    """
    lost = make_run()
    empty()
    waiting = [make_run() for _ in range(2)]
    queued_before(120, lost)
    queued_before(60, *waiting)

    assert send_missing() == 1

    assert messages() == [run.pk for run in waiting]
    assert messages(PRIORITY - 1) == [lost.pk]
    assert send_missing() == 0


def test_a_long_queue_is_not_sent_again() -> None:
    runs = [make_run() for _ in range(30)]
    queued_before(600, *runs)

    assert send_missing() == 0
    assert messages() == [run.pk for run in runs]


def test_messages_of_ended_runs_at_the_head_prove_nothing() -> None:
    stale, lost = [make_run() for _ in range(2)], make_run()
    AgentRun.objects.filter(pk__in=[run.pk for run in stale]).update(status="paused")
    queued_before(60, lost)

    assert send_missing() == 0  # its own message is the third


def test_a_run_of_a_dead_worker_comes_first() -> None:
    run, waiting = make_run(), make_run()
    assert transitions.claim(run.pk, "dead")
    assert transitions.expire_leases("dead") == 1
    queued_before(60, waiting)
    empty()

    assert send_missing() == 2
    assert (messages(FIRST), messages()) == ([run.pk], [waiting.pk])
    assert send_missing() == 0


def test_queues_are_inspected_separately() -> None:
    here, there = make_run(), make_run()
    AgentRun.objects.filter(pk=there.pk).update(queue="gpu")
    queued_before(60, here, there)

    assert send_missing() == 1
    assert (messages(), messages(queue="gpu")) == ([here.pk, there.pk], [there.pk])


def test_a_message_in_transit_through_redis_is_not_lost() -> None:
    run = make_run()
    empty()
    queued_before(ON_ITS_WAY_S / 2, run)
    assert send_missing() == 0

    queued_before(ON_ITS_WAY_S * 2, run)
    assert send_missing() == 1


def test_without_redis_a_queue_holds_each_run_once_and_no_more_than_a_batch(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker has a queue, and another worker's queue says nothing about this one."""
    settings.REDIS_URL = ""
    monkeypatch.setattr(sweep, "BATCH", 3)
    runs = [make_run() for _ in range(5)]
    empty()
    AgentRun.objects.update(message_sent_at=Now())  # by another worker

    assert [send_missing() for _ in range(3)] == [3, 0, 0]

    assert messages() == [run.pk for run in runs[:3]]


def test_without_redis_a_long_queue_is_served_in_order(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose slice is over waits for runs that do not fit into the queue in memory."""
    settings.REDIS_URL = ""
    monkeypatch.setattr(sweep, "BATCH", 2)
    runs = [make_run() for _ in range(5)]
    empty()
    order = []
    for _ in range(12):
        send_missing()
        run = AgentRun.objects.get(pk=taken())
        order.append(run.pk)
        # Its slice is over.
        AgentRun.objects.filter(pk=run.pk).update(queued_at=Now())
        wake.wake(run)

    assert order == [run.pk for run in [*runs, *runs, *runs[:2]]]
    for run in runs[2:]:
        AgentRun.objects.filter(pk=run.pk).update(status="paused")
    empty()
    send_missing()
    empty()
    wake.wake(runs[0])
    assert messages() == [runs[0].pk]  # the queue has room again


def test_a_sweep_ends_at_the_first_message_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further message would wait for a Redis that does not answer."""
    queued_before(60, *(make_run() for _ in range(3)))
    empty()
    tried: list[AgentRun] = []

    def fail(run: AgentRun, *, priority: int) -> bool:
        tried.append(run)
        return False

    monkeypatch.setattr(wake, "send", fail)

    assert send_missing() == 0

    assert len(tried) == 1


def test_a_requeued_run_has_a_new_message() -> None:
    run = make_run()
    empty()
    queued_before(60, run)
    assert send_missing() == 1
    assert transitions.claim(run.pk, "one")
    run.refresh_from_db()

    assert run.message_sent_at is not None
    transitions.expire_leases("one")
    empty()
    assert send_missing() == 1
