"""The database refuses writes for a time: the step waits and continues; nothing is lost, repeated or counted as a
death.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.backends.signals import connection_created
from pytest_django import Settings

from runs import chaos
from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted, drive_and_close
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.run_checks import transcript as transcript_of

pytestmark = pytest.mark.django_db(transaction=True)
CALLS = [["ledger_idempotent", "ledger_once"], ["ledger_read"]]
Words = Callable[[], list[str]]
#: Statements that make SQLite itself refuse writes on a connection.
FAULTS = {
    "read_only": "PRAGMA query_only = ON",
    "full": "PRAGMA max_page_count = 1",  # as many pages as exist, and no more
}


class Outage:
    """Makes all writes fail from `begin` on, for the given time."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._on = False
        self._timer: threading.Timer | None = None

    def begin(self, for_s: float) -> None:
        self._on = True
        if connection.vendor == "sqlite":
            self._spoil(connection)
        else:
            self._tell_the_server("SET default_transaction_read_only = on")
        self._timer = threading.Timer(for_s, self.end)
        self._timer.start()

    def end(self) -> None:
        self._on = False
        if connection.vendor == "postgresql":
            self._tell_the_server("RESET default_transaction_read_only")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.join()
        if connection.vendor == "postgresql":
            connection.close()
            connection.close_pool()

    def created(self, connection: Any, **_: Any) -> None:
        if self._on and connection.vendor == "sqlite":
            self._spoil(connection)

    def _spoil(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(FAULTS[self._kind])

    def _tell_the_server(self, what: str) -> None:
        """Switch the server to or from read-only, like a failover, and cut every connection."""
        name = connection.settings_dict["NAME"]
        writing = {"options": "-c default_transaction_read_only=off"}
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, **writing) as server:
            server.execute(f'ALTER DATABASE "{name}" {what}')
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])


def use_up_free_pages() -> None:
    """Fill the free pages, because a file that grew before is full only when these are used."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS ballast (bytes BLOB)")
        while cursor.execute("PRAGMA freelist_count").fetchone()[0]:
            cursor.execute("INSERT INTO ballast VALUES (zeroblob(4000))")


@pytest.fixture
def outage(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Outage]:
    outage = Outage(getattr(request, "param", "read_only"))
    connection_created.connect(outage.created)
    yield outage
    connection_created.disconnect(outage.created)
    outage.close()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS ballast")


def driven_beside(run: AgentRun) -> None:
    """Drive the run in a separate thread, like a worker's, so that the connection of this thread stays intact."""
    worker = Worker()
    thread = threading.Thread(target=drive_and_close, args=[worker, run])
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    worker.close(5)
    connection.close()
    run.refresh_from_db()


def at_first(point: str, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    left = [point]

    def look(name: str) -> None:
        if name in left:
            left.remove(name)
            act()

    monkeypatch.setattr(chaos, "point", look)
    return left


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "model.before_start",
        "turn.committed",
        "tool.before_start",
        "tool.marked_running",
        "tool.returned",
        "result.committed",
        "checkpoint.before",
        "end.before",
    ],
)
def test_the_step_stops_and_goes_on_when_storage_is_back(
    *,
    scripted: MakeScripted,
    effects: Words,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    outage: Outage,
    point: str,
) -> None:
    """No death is counted, no other worker takes the run, and no tool runs twice."""
    undisturbed = transcript_of(drive(scripted(calls=CALLS)))
    done = effects()
    run = scripted(calls=CALLS)
    left = at_first(point, lambda: outage.begin(0.5), monkeypatch)

    driven_beside(run)

    assert not left, "the point was never met"
    assert "storage failed in a step" in caplog.text
    assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 1)
    assert transcript_of(run) == undisturbed
    assert effects() == done * 2
    assert "run.recovered" not in [event.type for event in events(run)]
    check(run)


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "sqlite", reason="a server's disk is not the test's to fill")
@pytest.mark.parametrize("outage", ["full"], indirect=True)
def test_a_full_disk_is_waited_out(
    *,
    scripted: MakeScripted,
    effects: Words,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    outage: Outage,
) -> None:
    """An answer longer than a page cannot be stored until there is space."""
    long = {"calls": CALLS, "chunks": 200}
    undisturbed = transcript_of(drive(scripted(**long)))
    done = effects()
    run = scripted(**long)
    use_up_free_pages()
    at_first("model.before_start", lambda: outage.begin(0.5), monkeypatch)

    driven_beside(run)

    assert "storage failed in a step" in caplog.text
    assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 1)
    assert transcript_of(run) == undisturbed
    assert effects() == done * 2
    check(run)


@pytest.mark.slow
def test_an_outage_longer_than_the_lease_does_not_count_as_a_death(
    scripted: MakeScripted, settings: Settings, monkeypatch: pytest.MonkeyPatch, outage: Outage
) -> None:
    """A worker that cannot renew releases the run and records it later; otherwise three outages would make a step
    poison.
    """
    settings.AGENTOPS_LEASE_S = 3
    run = scripted(calls=CALLS)
    left = at_first("turn.committed", lambda: outage.begin(5), monkeypatch)

    driven_beside(run)

    assert not left
    assert list(Attempt.objects.filter(run=run).values_list("end_reason", flat=True)) == ["fenced"]
    settings.AGENTOPS_LEASE_S = 60
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    run = drive(run)
    assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 2)
    assert not Attempt.objects.filter(run=run, end_reason="died").exists()
    check(run)
