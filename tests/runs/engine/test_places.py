"""Limits of concurrent runs: a claim never exceeds them, and a free place goes to the next run."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.lifecycle import places, transitions
from runs.models import Agent, AgentRun
from runs.statuses import RunStatus
from runs.worker import worker as rows
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.engine import MakeHelper, MakeScripted, children_of, spawns, task, work
from tests.support.factories import make_agent, make_project, make_run
from tests.support.timing import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(transactional_db: None) -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close(0.5)


def claimed(*runs: AgentRun) -> list[bool]:
    return [transitions.claim(run.pk, "worker") is not None for run in runs]


@pytest.mark.parametrize("owner", [Agent, Project])
def test_claims_do_not_exceed_the_limit(owner: type[Agent | Project]) -> None:
    agent = make_agent()
    runs = [make_run(agent) for _ in range(4)]
    owner.objects.update(max_running=2)

    assert claimed(*runs) == [True, True, False, False]

    assert [run.status for run in AgentRun.objects.order_by("pk")] == ["running", "running", "queued", "queued"]
    assert list(AgentRun.objects.runnable()) == []


def test_the_limit_of_an_agent_does_not_affect_other_agents() -> None:
    project = make_project()
    limited, other = make_agent(project, max_running=1), make_agent(project)
    runs = [make_run(limited), make_run(limited), make_run(other), make_run(other)]

    assert claimed(*runs) == [True, False, True, True]


def test_a_recovered_run_keeps_its_place() -> None:
    agent = make_agent(max_running=1)
    lost, waiting = make_run(agent), make_run(agent)
    assert claimed(lost) == [True]
    assert transitions.expire_leases("worker") == 1

    assert claimed(waiting, lost, waiting) == [False, True, False]


def test_a_run_without_limits_needs_no_extra_queries() -> None:
    """The claim of a limited run adds two queries: it reads the limit and counts the running runs."""
    free, limited = make_run(), make_run(make_agent(max_running=1))
    numbers = []
    for run in (free, limited):
        with CaptureQueriesContext(connection) as sent:
            assert transitions.claim(run.pk, "worker")
        numbers.append(len(sent))

    assert numbers[1] - numbers[0] == 2


@pytest.mark.postgres
@pytest.mark.parametrize("owner", [Agent, Project])
def test_concurrent_claims_do_not_exceed_the_limit(owner: type[Agent | Project]) -> None:
    """Each claim locks a different run; the second waits for the first commit and counts its run."""
    agent = make_agent()
    runs = [make_run(agent) for _ in range(6)]
    owner.objects.update(max_running=2)
    start = threading.Barrier(len(runs))

    def claim(run: AgentRun) -> bool:
        try:
            start.wait(30)
            return claimed(run)[0]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(runs)) as pool:
        outcomes = list(pool.map(claim, runs))

    assert sum(outcomes) == 2
    assert AgentRun.objects.running().count() == 2


@pytest.mark.postgres
def test_a_claim_waits_for_a_concurrent_claim_of_the_last_place() -> None:
    agent = make_agent(max_running=1)
    first, second = make_run(agent), make_run(agent)
    outcome: list[bool] = []

    def claim() -> None:
        try:
            outcome.extend(claimed(second))
        finally:
            connections.close_all()

    thread = threading.Thread(target=claim)
    with transaction.atomic():
        assert claimed(first) == [True]
        thread.start()
        eventually(_is_lock_awaited, why="the second claim waits for the row of the agent")
    thread.join(60)

    assert outcome == [False]


def _is_lock_awaited() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


# --- Free places ------------------------------------------------------------------------------------------------------


def test_a_free_place_goes_to_the_run_that_waited_longest(woken: list[UUID]) -> None:
    agent = make_agent(max_running=1)
    running, *waiting = [make_run(agent) for _ in range(3)]
    make_run(make_agent(agent.project))
    assert claimed(running, *waiting) == [True, False, False]
    AgentRun.objects.filter(pk=waiting[1].pk).update(queued_at=Now() - timedelta(hours=1))

    leave_place(running)

    assert woken == [waiting[1].pk]
    assert claimed(waiting[1], waiting[0]) == [True, False]


def test_a_free_place_of_a_project_goes_by_priority_and_then_by_waiting_time(woken: list[UUID]) -> None:
    project = make_project()
    common, urgent = make_agent(project), make_agent(project, priority=0)
    running, *_ = [make_run(common) for _ in range(3)]
    next_runs = [make_run(urgent) for _ in range(2)]
    Project.objects.update(max_running=1)
    assert claimed(running) == [True]

    leave_place(running)

    assert woken == [next_runs[0].pk]


def test_a_free_place_of_the_project_skips_runs_whose_agent_is_at_its_limit(woken: list[UUID]) -> None:
    project = make_project()
    full, other = make_agent(project, max_running=1), make_agent(project)
    holding, running = make_run(full), make_run(other)
    make_run(full)
    ready = make_run(other)
    Project.objects.update(max_running=2)
    assert claimed(holding, running) == [True, True]

    leave_place(running)

    assert woken == [ready.pk]


def test_a_free_place_skips_runs_in_a_queue_without_workers(woken: list[UUID]) -> None:
    project = make_project()
    running, unserved = make_run(make_agent(project)), make_run(make_agent(project, queue="gpu", priority=0))
    served = make_run(make_agent(project))
    Project.objects.update(max_running=1)
    assert claimed(running) == [True]
    rows.announce("host:1:a", ["default"], 4)

    leave_place(running)

    assert woken == [served.pk]
    assert unserved.pk in set(AgentRun.objects.runnable().values_list("pk", flat=True))


def test_the_end_of_a_run_without_limits_wakes_no_run(woken: list[UUID]) -> None:
    agent = make_agent()
    running, _ = make_run(agent), make_run(agent)
    assert claimed(running) == [True]

    leave_place(running)

    assert woken == []


@pytest.mark.parametrize("owner", [Agent, Project])
def test_a_session_is_released_for_a_run_that_waits_for_its_place(owner: type[Agent | Project]) -> None:
    agent = make_agent()
    running = make_run(agent)
    owner.objects.update(max_running=1)
    assert claimed(running) == [True]
    assert not places.is_awaited(AgentRun.objects.get(pk=running.pk))
    make_run()
    assert not places.is_awaited(AgentRun.objects.get(pk=running.pk))

    make_run(agent)

    assert places.is_awaited(AgentRun.objects.get(pk=running.pk))
    owner.objects.update(max_running=None)
    assert not places.is_awaited(AgentRun.objects.get(pk=running.pk))


def leave_place(run: AgentRun) -> None:
    with transaction.atomic():
        transitions.kill(AgentRun.objects.select_for_update().get(pk=run.pk), by="ann")


def test_a_worker_drives_all_runs_of_a_limited_agent(scripted: MakeScripted, worker: Worker) -> None:
    first = scripted(calls=[["ledger_read"]])
    Agent.objects.update(max_running=1)
    rest = [make_run(first.agent, "Go.") for _ in range(3)]

    work(worker)

    ended = AgentRun.objects.filter(pk__in=[first.pk, *(run.pk for run in rest)], status=RunStatus.COMPLETED)
    assert ended.count() == 4


def test_a_parent_that_waits_for_its_children_gives_them_its_place(
    scripted: MakeScripted, helper: MakeHelper, worker: Worker
) -> None:
    """Parent and children share the single place of the project in turns."""
    run = scripted(lambda _: iter([spawns(task("below"), task("below"))]), tools=["spawn_agents"])
    helper(run, "below", ["Seen."], queue="gpu")
    Project.objects.update(max_running=1)

    advance_ready(worker)

    run.refresh_from_db()
    assert (run.status, run.status_reason) == ("waiting", "children")
    assert AgentRun.objects.running().count() == 0
    assert {child.queue for child in children_of(run)} == {"gpu"}
    assert claimed(*children_of(run)) == [True, False]


# --- The sweep --------------------------------------------------------------------------------------------------------


def test_runs_that_wait_for_a_place_do_not_hide_others_from_the_sweep() -> None:
    full, other = make_agent(max_running=1), make_agent()
    running, *_ = [make_run(full) for _ in range(3)]
    ready = make_run(other)
    assert claimed(running) == [True]

    assert [run.pk for run in AgentRun.objects.runnable()] == [ready.pk]
    assert transitions.expire_leases("worker") == 1
    assert [run.pk for run in AgentRun.objects.runnable()] == [running.pk, ready.pk]


@pytest.mark.postgres
def test_the_sweep_stays_fast_with_ten_thousand_runs_that_wait_for_a_place() -> None:
    """The limits are read once instead of per run, and the order is read from its index."""
    agent = make_agent(max_running=1)
    running, waiting = make_run(agent), make_run(agent)
    assert claimed(running) == [True]
    with _copies(waiting, 10_000):
        ready = make_run()
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE agent_runs")
        assert [run.pk for run in AgentRun.objects.runnable()[:50]] == [ready.pk]
        plan = AgentRun.objects.runnable()[:50].explain(analyze=True)

    assert "run_order" in plan
    assert "run_places" in plan
    assert set(re.findall(r"run_places.*loops=(\d+)", plan)) <= {"1"}, plan


@contextmanager
def _copies(run: AgentRun, count: int) -> Iterator[None]:
    """Insert copies of a queued run, without logs, for the duration of the block."""
    columns = ", ".join(field.column for field in AgentRun._meta.concrete_fields if field.column != "id")
    _unchecked(
        f"INSERT INTO agent_runs (id, {columns}) SELECT gen_random_uuid(), {columns} FROM agent_runs"
        " CROSS JOIN generate_series(1, %s) WHERE id = %s",
        [count, run.pk],
    )
    yield
    _unchecked("DELETE FROM agent_runs WHERE id NOT IN (SELECT id FROM timeline_log)", [])


def _unchecked(statement: str, values: list[object]) -> None:
    """Execute a statement without foreign key checks and triggers."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement, values)
