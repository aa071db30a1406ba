"""The messages that a worker may take: never more than its places, and upkeep takes no place of a run."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from celery.worker import state

from agentops.base import worker_places
from agentops.base.backing_services import FIRST, PRIORITIES, UPKEEP
from agentops.base.worker_places import Places

QUEUES = ["default", "gpu", UPKEEP]
NORMAL = 6


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, SimpleNamespace]:
    """Return the requests that this process works on, as Celery stores them."""
    requests: dict[str, SimpleNamespace] = {}
    monkeypatch.setattr(state, "requests", requests)
    return requests


def take(taken: dict[str, SimpleNamespace], *queues: str) -> None:
    for queue in queues:
        taken[str(len(taken))] = SimpleNamespace(delivery_info={"routing_key": queue})


def test_idle_worker_reads_all_queues_in_order_of_priority(taken: dict[str, SimpleNamespace]) -> None:
    readable = Places(runs=2, upkeep=2).readable(QUEUES)
    assert readable == [(queue, priority) for priority in PRIORITIES for queue in QUEUES]


def test_worker_with_full_places_still_reads_runs_of_dead_workers(taken: dict[str, SimpleNamespace]) -> None:
    take(taken, "default", "gpu")
    readable = Places(runs=2, upkeep=2).readable(QUEUES)
    assert [each for each in readable if each[0] != UPKEEP] == [("default", FIRST), ("gpu", FIRST)]
    assert (UPKEEP, NORMAL) in readable

    take(taken, "default")
    assert {queue for queue, _ in Places(runs=2, upkeep=2).readable(QUEUES)} == {UPKEEP}


def test_upkeep_takes_no_place_of_a_run(taken: dict[str, SimpleNamespace]) -> None:
    take(taken, UPKEEP, UPKEEP)
    readable = Places(runs=2, upkeep=2).readable(QUEUES)
    assert ("default", NORMAL) in readable
    assert [each for each in readable if each[0] == UPKEEP] == [(UPKEEP, FIRST)]


def test_worker_for_one_kind_reads_no_other_kind(taken: dict[str, SimpleNamespace]) -> None:
    assert {queue for queue, _ in Places(runs=0, upkeep=2).readable(QUEUES)} == {UPKEEP}
    assert {queue for queue, _ in Places(runs=2, upkeep=0).readable(QUEUES)} == {"default", "gpu"}


def test_pool_size_covers_all_places() -> None:
    assert Places(runs=8, upkeep=2).total() == 12
    assert Places(runs=8, upkeep=0).total() == 9


def test_nothing_is_read_before_the_worker_is_ready(taken: dict[str, SimpleNamespace]) -> None:
    here, heard = Places(runs=2, upkeep=2, is_open=False), []
    here.watchers.append(lambda: heard.append("looked"))
    assert here.readable(QUEUES) == []

    here.open()

    assert here.readable(QUEUES)
    assert heard == ["looked"]


def test_finished_task_frees_its_place_before_celery_forgets_it(taken: dict[str, SimpleNamespace]) -> None:
    take(taken, "default", "default")
    assert len(worker_places.requests()) == 2
    taken["0"].has_ended = True
    assert len(worker_places.requests()) == 1


def test_process_other_than_a_worker_reads_everything() -> None:
    assert len(Places().readable(QUEUES)) == len(PRIORITIES) * len(QUEUES)


def test_free_place_wakes_only_the_reading_loop_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works after a lost connection, although Celery forgets its loop. A forked child has its parent's loop."""
    woken: list[object] = []
    worker_places.use_loop(SimpleNamespace(call_soon=woken.append))

    worker_places.here.announce()
    assert len(woken) == 1
    monkeypatch.setattr(os, "getpid", lambda: 1)
    worker_places.here.announce()
    assert len(woken) == 1
