"""Lock order on PostgreSQL: holding the lock of a run never deadlocks with a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from agentops.base.database_clock import clock
from agentops.base.refusals import Refusal
from runs.actions.resume import resume
from runs.engine.leases import Lease
from runs.engine.releases import UnloadedRun, release_run
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, RunError
from runs.statuses import RunStatus
from tests.support.factories import make_run
from tests.support.timing import eventually
from timeline import log
from timeline.events.run import RunFailed

LOCKS: dict[str, Callable[[Any], Any]] = {
    "stop": lambda pk: inbox.stop(pk, by="ann"),
    "kill": lambda pk: resume(pk, by="ann", kill=True),
    "claim": lambda pk: transitions.claim(pk, "another worker"),
}


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", LOCKS)
def test_actions_wait_for_a_worker_that_commits_a_result(name: str) -> None:
    """The worker holds the log's row, and its commit checks that the referenced run still exists."""
    run = make_run()
    assert transitions.claim(run.pk, "worker")
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    outcome: list[Any] = []

    def lock() -> None:
        try:
            outcome.append(LOCKS[name](run.pk))
        except Exception as error:
            outcome.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=lock)
    with transaction.atomic():
        log.hold(run.pk, epoch=1)
        thread.start()
        eventually(_somebody_waits, why="the other one waits for the log's row")
        RunError.objects.create(
            run=run, step_number=1, context="llm", error_type="x", message="x", created_at=timezone.now()
        )
    thread.join(60)

    assert len(outcome) == 1
    assert not isinstance(outcome[0], Exception), outcome


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_command_waits_for_the_end_of_a_run_that_has_read_its_commands() -> None:
    """Otherwise the command would be accepted, but the run would end without it."""
    claimed = transitions.claim(make_run().pk, "worker")
    assert claimed is not None
    run, outcome = claimed.run, list[Any]()

    def stop() -> None:
        try:
            outcome.append(inbox.stop(run.pk, by="ann"))
        except Refusal as error:
            outcome.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=stop)

    def post() -> None:
        thread.start()
        eventually(_somebody_waits, why="the command waits for the row of the run")

    held = UnloadedRun(run, Lease(run.pk, claimed.epoch, clock() + 60))
    release_run(held, RunStatus.FAILED, RunFailed(error_type="test"), reason="test", unless={"stop"}, also=post)
    thread.join(60)

    assert [each.code for each in outcome] == ["run_terminal"]


def _somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])
