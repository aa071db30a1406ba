"""The timeouts of a connection during migrations, set by receivers of Django's migration signals."""

from __future__ import annotations

from typing import Any

from django.db import connections

#: Seconds that a migration may compute between two statements of its transaction. Other transactions may only be idle
#: for the duration of a lease, which a migration on an overloaded machine exceeds.
IDLE_S = 600


def extend(*, using: str, **_: Any) -> None:
    """Allow transactions to be idle for longer, on the connection of this thread."""
    _execute(using, f"SET idle_in_transaction_session_timeout = '{IDLE_S}s'")


def restore(*, using: str, **_: Any) -> None:
    """Restore the timeout of agentops.base.database.config."""
    _execute(using, "RESET idle_in_transaction_session_timeout")


def _execute(using: str, sql: str) -> None:
    if connections[using].vendor == "postgresql":
        with connections[using].cursor() as cursor:
            cursor.execute(sql)
