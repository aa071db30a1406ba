"""Test dead connections in the pool, as after a restart of PostgreSQL, and connections that die before their use."""

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
from tests.support.api import STARTED, Runner, event
from tests.support.factories import make_project, with_key
from timeline.models import Event

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]
#: For this many failures, psycopg's pool would wait 1, 2, 4, 8 and 16 seconds in sequence; it gives up after 15
#: seconds.
DEAD = 6


@pytest.fixture
def idle_connections() -> Iterator[None]:
    """Put this many idle connections into the pool."""
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


def test_a_pool_of_dead_connections_opens_a_new_one(idle_connections: None) -> None:
    assert connection.pool.get_stats()["pool_available"] >= DEAD
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        name = connection.settings_dict["NAME"]
        # Wait until they have ended, as a restart does.
        server.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [name])

    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_a_pool_can_be_closed_by_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock and the start of a forking worker do this."""
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
    """Ends the server process of this thread's connection before its first statement, after the pool's check."""

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
    """Return a function that sends a request on a pooled connection, and then cleans up as a web process does."""
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


def test_a_connection_that_dies_after_the_check_fails_one_request(sent: Callable[..., Any]) -> None:
    """Test a read request and a write request, which is sent again."""
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


def test_a_dead_connection_causes_one_error(sent: Callable[..., Any]) -> None:
    connection.close()
    with connection.execute_wrapper(EndedBackend()):
        with pytest.raises(OperationalError):
            Project.objects.count()
        close_old_connections()
        assert Project.objects.count() == 1
