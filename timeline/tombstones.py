"""Deletes the rows of logs in batches, and counts them in the tombstones. The caller selects the logs and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, models, transaction
from django.db.models import QuerySet

from agentops.base.database_clock import Now
from timeline.models import Event, Log, MaintenanceDoor, Tombstone


@contextmanager
def allow_changes(reason: str) -> Iterator[None]:
    """Open a transaction in which the append-only triggers allow UPDATE, DELETE and TRUNCATE.

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


# --- Batches ---

#: The number of rows in one transaction.
BATCH = 1000


@dataclass(frozen=True)
class OwnedTable:
    """A table whose rows belong to logs. `owner` is the field that refers to the log."""

    model: type[models.Model]
    owner: str

    @property
    def table(self) -> str:
        return str(self.model._meta.db_table)

    def delete(self, log_id: UUID, limit: int) -> int:
        """Delete up to `limit` rows of a log and return their number.

        Not with the ORM, which would first query for referring rows.
        """
        quote = connection.ops.quote_name
        table, key = quote(self.table), quote(str(self.model._meta.pk.column))
        owner = self.model._meta.get_field(self.owner)
        assert isinstance(owner, models.Field)
        batch = f"SELECT {key} FROM {table} WHERE {quote(str(owner.column))} = %s LIMIT %s"  # noqa: S608 - our models'
        with connection.cursor() as cursor:
            cursor.execute(
                f"DELETE FROM {table} WHERE {key} IN ({batch})",  # noqa: S608
                [owner.get_db_prep_value(log_id, connection), limit],
            )
            return int(cursor.rowcount)


#: The events of a log.
EVENTS = OwnedTable(Event, "log")
_LOGS = OwnedTable(Log, "id")


def unfinished_tombstones() -> QuerySet[Tombstone]:
    """Return the tombstones of hidden logs that have rows left."""
    return Tombstone.objects.filter(finished_at=None)


def remove_batch(log_id: UUID, parts: Iterable[OwnedTable]) -> tuple[bool, Counter[str]]:
    """Delete up to `BATCH` rows of a log in one transaction. Return whether rows may be left, and row counts by table.

    The tables `parts` are processed in order. A batch that is not full is the last one, even if rows are being added:
    `finish` locks the log and deletes the rest.
    """
    with allow_changes("retention"):
        # Locked, so that two processes do not delete and count the same rows.
        stone = unfinished_tombstones().select_for_update().filter(pk=log_id).first()
        removed = Counter[str]() if stone is None else _remove(stone, parts, BATCH)
    return removed.total() >= BATCH, removed


def finish(group_id: UUID, parts: Sequence[OwnedTable], heads: Sequence[OwnedTable]) -> tuple[bool, Counter[str]]:
    """Delete the last rows of a run group, including its runs and logs.

    Return whether all rows were deleted (False if more than a batch was left), and row counts by table. `heads` are the
    tables with one row per log, with the same ID. These rows refer to each other, so the rows of a group are deleted in
    one transaction. They are locked in reverse order.
    """
    removed: Counter[str] = Counter()
    with allow_changes("retention"):
        stones = list(unfinished_tombstones().select_for_update().filter(family=group_id).order_by("pk"))
        ids = [stone.pk for stone in stones]
        # Lock order: heads, logs. Rows of a concurrent writer are deleted below; later writers find no log.
        for head in reversed(heads):
            list(head.model._base_manager.select_for_update().filter(pk__in=ids).order_by("pk").values_list("pk"))
        list(Log.objects.select_for_update().filter(pk__in=ids).order_by("pk").values_list("pk"))
        for stone in stones:
            removed += _remove(stone, parts, BATCH - removed.total())
            if removed.total() >= BATCH:
                return False, removed
        for stone in stones:
            removed += _remove(stone, (*heads, _LOGS), 2)
        unfinished_tombstones().filter(pk__in=ids).update(finished_at=Now())
    return True, removed


def _remove(stone: Tombstone, parts: Iterable[OwnedTable], limit: int) -> Counter[str]:
    """Delete up to `limit` rows of a log, and count them in its tombstone."""
    removed: Counter[str] = Counter()
    for part in parts:
        if removed.total() < limit and (count := part.delete(stone.pk, limit - removed.total())):
            removed[part.table] += count
    if removed:
        stone.rows = dict(Counter(stone.rows) + removed)
        stone.save(update_fields=["rows"])
    return removed
