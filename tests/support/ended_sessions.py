"""Sessions of PostgreSQL that the server terminates after a chosen statement of a thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
from django.db import connection

from tests.support.waiting import eventually

Server = psycopg.Connection[Any]
_GONE = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"


def on_the_server() -> Iterator[Server]:
    """Yield a connection of an administrator. Used as a fixture."""
    name = str(connection.settings_dict["NAME"])
    with psycopg.connect(os.environ["DATABASE_URL"], dbname=name, autocommit=True) as server:
        yield server


class EndedSession:
    """Terminates this thread's session after statement `number`, as an administrator does or by the idle timeout."""

    def __init__(self, number: int, server: Server, *, idle: bool) -> None:
        self._number, self._server, self._idle = number, server, idle
        self.statements = 0
        self.has_ended = False

    def __call__(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        self.statements += 1
        if self.statements == self._number and (connection.in_atomic_block or not self._idle):
            self.end()
        return result

    def end(self) -> None:
        pid, self.has_ended = connection.connection.info.backend_pid, True
        if self._idle:
            connection.connection.execute("SET idle_in_transaction_session_timeout = 1")
        else:
            self._server.execute("SELECT pg_terminate_backend(%s)", [pid])
        eventually(lambda: not self._server.execute(_GONE, [pid]).fetchone(), within_s=30, why="the session has ended")
