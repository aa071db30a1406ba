"""Removal of rows that are append-only elsewhere: in batches, counted on the tombstones of what they belonged to.

Which logs go, and what belongs to them, is the caller's to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, models
from django.db.models import QuerySet
from django.db.models.functions import Now

from timeline.maintenance import open_door
from timeline.models import Event, Log, Tombstone

#: Rows of one transaction.
BATCH = 1000


@dataclass(frozen=True)
class OwnedTable:
    """A table whose rows belong to logs, and the field that says to which."""

    model: type[models.Model]
    owner: str

    @property
    def table(self) -> str:
        return str(self.model._meta.db_table)

    def delete(self, log_id: UUID, limit: int) -> int:
        """Up to `limit` rows of one log. Not by the ORM, which would look for rows that refer to them first."""
        quote = connection.ops.quote_name
        table, key = quote(self.table), quote(str(self.model._meta.pk.column))
        owner = self.model._meta.get_field(self.owner)
        assert isinstance(owner, models.Field)
        some = f"SELECT {key} FROM {table} WHERE {quote(str(owner.column))} = %s LIMIT %s"  # noqa: S608 - our models'
        with connection.cursor() as cursor:
            cursor.execute(
                f"DELETE FROM {table} WHERE {key} IN ({some})",  # noqa: S608
                [owner.get_db_prep_value(log_id, connection), limit],
            )
            return int(cursor.rowcount)


#: Of every log.
EVENTS = OwnedTable(Event, "log")
_LOGS = OwnedTable(Log, "id")


def unfinished() -> QuerySet[Tombstone]:
    """Tombstones of what is hidden already and has rows left."""
    return Tombstone.objects.filter(finished_at=None)


def remove_batch(log_id: UUID, parts: Iterable[OwnedTable]) -> Counter[str]:
    """One transaction of up to `BATCH` rows, of the first parts that have any: table → rows. Empty at the end."""
    with open_door("retention"):
        # Locked: of two that work on one log the second waits, and counts what the first has left.
        stone = unfinished().select_for_update().filter(pk=log_id).first()
        return Counter() if stone is None else _remove(stone, parts, BATCH)


def finish(family: UUID, parts: Sequence[OwnedTable], heads: OwnedTable) -> tuple[bool, Counter[str]]:
    """Remove the last rows of a family, with the rows that they belonged to; False where there are too many left.

    `heads`: the table with one row for each log, under the same id. Those rows refer to each other, so all of a
    family's go at once.
    """
    removed: Counter[str] = Counter()
    with open_door("retention"):
        stones = list(unfinished().select_for_update().filter(family=family).order_by("pk"))
        ids = [stone.pk for stone in stones]
        # Heads before logs, as everyone locks them. Who still adds to one of them is waited for, and counted below;
        # who comes later finds no log.
        list(heads.model._base_manager.select_for_update().filter(pk__in=ids).order_by("pk").values_list("pk"))
        list(Log.objects.select_for_update().filter(pk__in=ids).order_by("pk").values_list("pk"))
        for stone in stones:
            removed += _remove(stone, parts, BATCH - removed.total())
            if removed.total() >= BATCH:
                return False, removed
        for stone in stones:
            removed += _remove(stone, (heads, _LOGS), 2)
        unfinished().filter(pk__in=ids).update(finished_at=Now())
    return True, removed


def _remove(stone: Tombstone, parts: Iterable[OwnedTable], limit: int) -> Counter[str]:
    """Up to `limit` rows of one log, counted on its stone too."""
    removed: Counter[str] = Counter()
    for part in parts:
        if removed.total() < limit and (count := part.delete(stone.pk, limit - removed.total())):
            removed[part.table] += count
    if removed:
        stone.rows = dict(Counter(stone.rows) + removed)
        stone.save(update_fields=["rows"])
    return removed
