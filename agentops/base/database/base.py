"""Django's PostgreSQL backend, with a pool that is usable at once after a restart of the server.

Django requires the name of this module: it looks for `base` in the package that the setting ENGINE names.
"""

from __future__ import annotations

import select
import time
from typing import Any, cast

from django.db.backends.postgresql import base
from django.db.backends.utils import CursorWrapper
from psycopg import Connection, Error

#: Seconds after a check by a query for which a connection is checked by its socket only, which saves busy sites a query
#: per request. The socket shows a restart of the server too, except behind a proxy that keeps connections to a lost
#: server: there, the first statement fails.
FRESH_S = 10.0
#: Executions of a statement on one connection after which it is prepared: the server then keeps its plan.
PREPARE_AFTER = 5


class DatabaseWrapper(base.DatabaseWrapper):
    """Checks each pooled connection before use, without pauses between checks.

    Django's setting CONN_HEALTH_CHECKS must be off. With it, the pool checks, and waits 1, 2, 4, … seconds after each
    dead connection. After a restart of the server all are dead, and four of them exceed the pool's timeout.
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
        """Close the pool, if it exists. Several threads may call this at once."""
        pool = cast("Any", self)._connection_pools.pop(self.alias, None)
        if pool is not None:
            pool.close()

    def prepared_cursor(self) -> CursorWrapper:
        """Return a cursor whose statements are prepared, for the few that nearly every request or step repeats.

        Statements of Django's own cursors are not prepared, because their text contains the values.
        """
        self.ensure_connection()
        # Django creates its own cursors from the same two, but the type stubs do not declare them.
        wrapper, new_cursor = cast("Any", self), cast("Any", base.ServerBindingCursor)
        with self.wrap_database_errors:
            return cast("CursorWrapper", wrapper._prepare_cursor(new_cursor(self.connection)))

    def _works(self, connection: Connection[Any]) -> bool:
        """Return whether a connection works. Asks the server, unless it was asked in the last FRESH_S seconds."""
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
    """Return whether no data has arrived: unrequested data means that the server, or its host, has disconnected."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
