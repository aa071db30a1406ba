"""After a restart of PostgreSQL all connections of a pool are dead. They are discarded without a wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, connections

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
