"""Lists whose rows the database returns as JSON text.

Lists are paginated by keyset and read in a constant number of statements, without creating objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db import connection

from runs.queries.json_columns import MICROSECOND, Column
from runs.queries.masking import masked, masked_rows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The position of a row in the order of its list, as JSON values.
Place = tuple[int | str, ...]


# --- The order of a list --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A column by which a list is ordered, with the conversion of its value to and from a cursor."""

    sql: str
    #: What is selected: a text, which costs less than an object, where only the first and the last are looked at.
    told: str = ""
    kept: Callable[[Any], int | str] = lambda value: value
    asked: Callable[[Any], Any] = lambda kept: kept

    @property
    def selected(self) -> str:
        return self.told or self.sql


def _kept_time(told: str) -> int:
    """Return microseconds since the epoch. SQLite's text has no zone; PostgreSQL's has that of the connection."""
    moment = datetime.fromisoformat(told)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def time_param(moment: datetime) -> Any:
    """Return a time as a query parameter for the current database."""
    return connection.ops.adapt_datetimefield_value(moment)


def id_param(value: UUID) -> Any:
    """Return a UUID as a query parameter for the current database."""
    return value if connection.features.has_native_uuid_field else value.hex


def by_time(sql: str) -> Key:
    """Return the key for a column of times."""
    return Key(sql, f"CAST({sql} AS text)", _kept_time, lambda kept: time_param(EPOCH + kept * MICROSECOND))


def by_id(sql: str) -> Key:
    """Return the key for a column of UUIDs."""
    return Key(sql, f"CAST({sql} AS text)", lambda told: UUID(told).hex, lambda kept: id_param(UUID(hex=kept)))


@dataclass(frozen=True)
class Rows:
    """The rows of a page, as JSON text or as model instances, in the order of the query."""

    found: list[Any]
    #: Of each row, the values of the order's columns.
    keys: list[tuple[Any, ...]]
    order: Sequence[Key]
    #: Of a search that did not look through everything: the place that it came to.
    reached: Place | None = None
    #: The tail of the first row, for what is the same in all.
    tail: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.found)

    def place(self, index: int) -> Place:
        return tuple(key.kept(value) for key, value in zip(self.order, self.keys[index], strict=True))

    def first(self, count: int) -> Rows:
        return replace(self, found=self.found[:count], keys=self.keys[:count])

    def backwards(self) -> Rows:
        return replace(self, found=self.found[::-1], keys=self.keys[::-1])


# --- A list ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """SQL conditions joined by AND, with their parameters."""

    conditions: tuple[str, ...] = ()
    params: tuple[Any, ...] = ()

    def also(self, condition: str, *params: Any) -> Where:
        """Return these conditions and another one."""
        return Where((*self.conditions, condition), (*self.params, *params))


@dataclass(frozen=True)
class RowSpan:
    """A range of a list: at most `limit` rows from a position, in one direction."""

    place: Place = ()
    backward: bool = False
    #: Whether the row at the position is included.
    inclusive: bool = False
    limit: int = 50


@dataclass(frozen=True)
class Listing:
    """A kind of rows: their tables (`source`), columns and order."""

    source: str
    columns: Sequence[Column]
    order: Sequence[Key]
    descending: bool = False
    #: Further expressions, valid on both databases, that `finish` needs besides the text of a row.
    tail: Sequence[str] = ()
    finish: Callable[..., str] | None = None

    def page(self, where: Where, span: RowSpan) -> Rows:
        """Return the rows of a range, with secrets masked. One statement."""
        found = self._read(self.beyond(where, span), self._in_order(span))
        return replace(found, found=masked_rows(found.found))

    def one(self, where: Where, *, secrets: bool = False) -> str | None:
        """Return the matching row or None. Its secrets are masked unless `secrets` is True. One statement."""
        text = next(iter(self._read(where, "LIMIT 1").found), None)
        return text if text is None or secrets else masked(text)

    def keys(self, where: Where, span: RowSpan, *also: str) -> list[tuple[Any, ...]]:
        """Return only the ordering columns of the rows, and the expressions `also`. One statement."""
        where = self.beyond(where, span)
        selected = ", ".join([*(key.selected for key in self.order), *also])
        sql = f"SELECT {selected} FROM {self.source} {_said(where)} {self._in_order(span)}"  # noqa: S608 - all ours
        return _all(sql, where)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a row."""
        properties = {column.name: column.schema() for column in self.columns}
        return {"type": "object", "properties": properties, "required": list(properties)}

    def beyond(self, where: Where, span: RowSpan) -> Where:
        """Return `where` with the condition that a row is after the span's position, in the span's direction."""
        if not span.place:
            return where
        columns = ", ".join(key.sql for key in self.order)
        sign = (">" if self.descending == span.backward else "<") + "=" * span.inclusive
        marks = ", ".join(["%s"] * len(self.order))
        values = (key.asked(kept) for key, kept in zip(self.order, span.place, strict=True))
        # A row comparison, for which the database can use the index.
        return where.also(f"({columns}) {sign} ({marks})", *values)

    def _in_order(self, span: RowSpan) -> str:
        direction = "" if self.descending == span.backward else " DESC"
        return f"ORDER BY {', '.join(key.sql + direction for key in self.order)} LIMIT {int(span.limit)}"

    def _read(self, where: Where, rest: str) -> Rows:
        count = len(self.order)
        found = _all(f"{self._selects[connection.vendor]} {_said(where)} {rest}", where)
        texts = [row[count] for row in found]
        if self.finish is not None:
            texts = [self.finish(text, *row[count + 1 :]) for text, row in zip(texts, found, strict=True)]
        return Rows(texts, [row[:count] for row in found], self.order, tail=found[0][count + 1 :] if found else ())

    @cached_property
    def _selects(self) -> Mapping[str, str]:
        members = ", ".join(f"'{column.name}', {column.selected('sqlite')}" for column in self.columns)
        row = ", ".join(f'{column.selected("postgresql")} AS "{column.name}"' for column in self.columns)
        return {
            "sqlite": self._select(f"JSON_OBJECT({members})"),
            "postgresql": f"{self._select('row_to_json(made)::text')} CROSS JOIN LATERAL (SELECT {row}) AS made",
        }

    def _select(self, row: str) -> str:
        selected = ", ".join([*(key.selected for key in self.order), row, *self.tail])
        return f"SELECT {selected} FROM {self.source}"  # noqa: S608 - all ours


def _said(where: Where) -> str:
    return f"WHERE {' AND '.join(where.conditions)}" if where.conditions else ""


def _all(sql: str, where: Where) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, where.params)
        return list(cursor.fetchall())
