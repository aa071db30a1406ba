"""The PostgreSQL backend; Django requires this module name."""

from __future__ import annotations

import select
import time
from typing import Any, cast

from django.db.backends.postgresql import base
from django.db.backends.utils import CursorWrapper
from psycopg import Connection, Error

#: Seconds after a check for which a connection is checked without a query, which saves busy sites one per request. This
#: detects the same as a query, such as a restart of the server, except behind a proxy that keeps connections to a lost
#: server: there, the first statement fails.
FRESH_S = 10.0
#: Executions of a statement by one connection after which the server keeps its plan, if the statement may be prepared.
PREPARE_AFTER = 5


class DatabaseWrapper(base.DatabaseWrapper):
    """Checks each pooled connection before use, without pauses between checks.

    Django's own setting for this, CONN_HEALTH_CHECKS, has to be off: the pool then checks, and waits 1, 2, 4, … seconds
    after each dead connection. After a restart of the server all are dead, and four of them exceed the pool's timeout.
    """

    def get_connection_params(self) -> dict[str, Any]:
        return {**super().get_connection_params(), "prepare_threshold": PREPARE_AFTER}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection[Any]:
        """Return a working connection. Raises `OperationalError` if the pool has none within its timeout."""
        connection: Connection[Any] = super().get_new_connection(conn_params)
        while self.pool and not self._works(connection):
            self.pool.putconn(connection)  # which discards it
            connection = super().get_new_connection(conn_params)
        return connection

    def close_pool(self) -> None:
        """Close the pool, if it exists. May run in several threads at once, for example in a worker that forks."""
        pool = cast("Any", self)._connection_pools.pop(self.alias, None)
        if pool is not None:
            pool.close()

    def prepared_cursor(self) -> CursorWrapper:
        """Return a cursor for the few statements that nearly every request or step repeats: the server plans them once.

        Other statements are not prepared: Django's own cursors send the values as a part of the text.
        """
        self.ensure_connection()
        # The stubs declare neither. Django's own cursors are created from the same two.
        wrapper, new_cursor = cast("Any", self), cast("Any", base.ServerBindingCursor)
        with self.wrap_database_errors:
            return cast("CursorWrapper", wrapper._prepare_cursor(new_cursor(self.connection)))

    def _works(self, connection: Connection[Any]) -> bool:
        now = time.monotonic()
        if now - getattr(connection, "checked_at", -FRESH_S) < FRESH_S and _is_quiet(connection):
            return True
        try:
            self.pool.check_connection(connection)
        except Error:
            return False
        connection.checked_at = now  # type: ignore[attr-defined]
        return True


def _is_quiet(connection: Connection[Any]) -> bool:
    """Return whether no unrequested data arrived: the server, or its host, announces when it closes a connection."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
