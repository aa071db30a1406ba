"""The exception to append-only tables, for retention and restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from timeline.models import MaintenanceDoor


@contextmanager
def allow_changes(reason: str) -> Iterator[None]:
    """A transaction in which the append-only triggers allow UPDATE, DELETE and TRUNCATE.

    The permission ends with the transaction. On PostgreSQL it is a local setting. On SQLite it is a row that is deleted
    before the commit; SQLite's transactions are IMMEDIATE, so other connections cannot write while it exists.
    """
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL agentops.maintenance = 'on'")
            yield
            return
        row = MaintenanceDoor.objects.create(reason=reason)
        yield
        row.delete()
