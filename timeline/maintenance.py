"""The marked door through which retention and restore may change what is append-only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from timeline.models import MaintenanceDoor


@contextmanager
def open_door(reason: str) -> Iterator[None]:
    """One transaction in which the append-only triggers let UPDATE, DELETE and TRUNCATE pass.

    The mark ends with the transaction: a local setting on Postgres, a row that is deleted again on SQLite
    (whose transactions are IMMEDIATE, so no other connection can write while the row stands).
    """
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL agentops.maintenance = 'on'")
            yield
            return
        door = MaintenanceDoor.objects.create(reason=reason)
        yield
        door.delete()
