"""Connections of a pool that are dead, as all are after a restart of PostgreSQL, or that die before they are used."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, close_old_connections, connection, connections
from django.test import Client

from agentops.accounts.models import Project
from tests.support.accounts import with_key
from tests.support.api.runner import STARTED, Runner, event
from tests.support.factories import make_project
from timeline.models import Event

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]
#: The pool of psycopg would wait 1, 2, 4, 8 and 16 seconds between so many, and gives up after 15.
DEAD = 6


@pytest.fixture
def idle_connections() -> Iterator[None]:
    """So many connections that wait in the pool."""
    connection.close()
    together = threading.Barrier(DEAD)
    threads = [threading.Thread(target=hold_a_connection, args=[together]) for _ in range(DEAD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield
    connection.close()


def hold_a_connection(together: threading.Barrier) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    together.wait(10)
    connections.close_all()


def test_a_pool_of_dead_connections_gives_a_new_one(idle_connections: None) -> None:
    assert connection.pool.get_stats()["pool_available"] >= DEAD
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        name = connection.settings_dict["NAME"]
        # Waits for their ends, as a restart does.
        server.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [name])

    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_a_pool_that_two_threads_close_at_once_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the clock and the start of a worker that forks do."""
    connection.close()
    pool = connection.pool
    close = pool.close

    def close_during_another_close() -> None:
        monkeypatch.setattr(pool, "close", close)
        other = threading.Thread(target=connection.close_pool)
        other.start()
        other.join()
        close()

    monkeypatch.setattr(pool, "close", close_during_another_close)
    connection.close_pool()

    assert pool.closed
    assert connection.pool is not pool


class EndedBackend:
    """Ends the server process of this thread's connection before its first statement, after the pool has checked it."""

    def __init__(self) -> None:
        self.is_armed = True

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if self.is_armed:
            self.is_armed = False
            pid = context["connection"].connection.info.backend_pid
            with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
                assert server.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]).fetchone() == (True,)
        return execute(sql, params, many, context)


@pytest.fixture
def sent() -> Iterator[Callable[..., Any]]:
    """Sends a request on a connection of the pool, and ends it as a web process does."""
    project = make_project("outage")
    send, reader = Runner(project), with_key(project)

    def call(*events: Any) -> Any:
        connection.close()
        try:
            return send(*events) if events else Client().get("/api/projects/outage/agent-runs", headers=reader)
        finally:
            close_old_connections()

    yield call
    connection.close()


def test_a_connection_that_dies_after_the_check_costs_one_answer(sent: Callable[..., Any]) -> None:
    """Of a request to read, and of one to write, which is sent again."""
    assert sent(STARTED).status_code == 200
    for events in ((), (event(event_id="e2"),)):
        with connection.execute_wrapper(ended := EndedBackend()):
            refused = sent(*events)
            again = sent(*events)

        assert not ended.is_armed
        assert (refused.status_code, refused.json()["code"]) == (503, "storage_unavailable")
        assert refused.headers["Retry-After"] == "5"
        assert again.status_code == 200
    assert Event.objects.filter(event_id="e2").count() == 1


def test_a_statement_on_a_connection_that_has_died_is_one_error(sent: Callable[..., Any]) -> None:
    connection.close()
    with connection.execute_wrapper(EndedBackend()):
        with pytest.raises(OperationalError):
            Project.objects.count()
        close_old_connections()
        assert Project.objects.count() == 1
