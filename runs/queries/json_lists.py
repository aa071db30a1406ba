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
from runs.queries.masking import mask, mask_rows

#: Members of one JSON object in SQLite. Its functions take at most 127 arguments (100 in older versions).
SQLITE_MEMBERS = 50
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The position of a row in the order of its list, as JSON values.
Position = tuple[int | str, ...]


# --- The order of a list --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A column by which a list is ordered, with the conversion of its value to and from a cursor."""

    sql: str
    #: The expression to select instead. A text costs less than an object, and only the first and the last value are
    #: used.
    text_sql: str = ""
    to_cursor: Callable[[Any], int | str] = lambda value: value
    from_cursor: Callable[[Any], Any] = lambda value: value

    @property
    def selected_sql(self) -> str:
        return self.text_sql or self.sql


def _time_to_cursor(text: str) -> int:
    """Return microseconds since the epoch. SQLite's text has no zone; PostgreSQL's text has the connection's zone."""
    moment = datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def time_param(moment: datetime) -> Any:
    """Return a time as a query parameter for the current database."""
    return connection.ops.adapt_datetimefield_value(moment)


def id_param(value: UUID) -> Any:
    """Return a UUID as a query parameter for the current database."""
    return value if connection.features.has_native_uuid_field else value.hex


def uuid_of(value: Any) -> UUID:
    """Return an ID from its database value: SQLite stores hexadecimal digits."""
    return value if isinstance(value, UUID) else UUID(hex=value)


def by_time(sql: str) -> Key:
    """Return the key for a column of times."""
    return Key(sql, f"CAST({sql} AS text)", _time_to_cursor, lambda value: time_param(EPOCH + value * MICROSECOND))


def by_id(sql: str) -> Key:
    """Return the key for a column of UUIDs."""
    return Key(sql, f"CAST({sql} AS text)", lambda text: UUID(text).hex, lambda value: id_param(UUID(hex=value)))


@dataclass(frozen=True)
class Rows:
    """The rows of a page, as JSON text or as model instances, in the order of the query."""

    items: list[Any]
    #: The ordering columns of each row.
    keys: list[tuple[Any, ...]]
    order: Sequence[Key]
    #: The position where a search stopped before the end of the list.
    search_end: Position | None = None
    #: The `tail` expressions of the first row, for values that all rows share.
    tail: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def position_of(self, index: int) -> Position:
        return tuple(key.to_cursor(value) for key, value in zip(self.order, self.keys[index], strict=True))

    def first(self, count: int) -> Rows:
        return replace(self, items=self.items[:count], keys=self.keys[:count])

    def backwards(self) -> Rows:
        return replace(self, items=self.items[::-1], keys=self.keys[::-1])


# --- A list ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """SQL conditions joined by AND, with their parameters."""

    conditions: tuple[str, ...] = ()
    params: tuple[Any, ...] = ()

    def also(self, condition: str, *params: Any) -> Where:
        """Return these conditions and another one."""
        return Where((*self.conditions, condition), (*self.params, *params))

    def __and__(self, other: Where) -> Where:
        return Where((*self.conditions, *other.conditions), (*self.params, *other.params))


@dataclass(frozen=True)
class RowSpan:
    """A range of a list: at most `limit` rows from a position, in one direction."""

    position: Position = ()
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
    #: Further expressions, valid on both databases, that `finish` needs in addition to the text of a row.
    tail: Sequence[str] = ()
    finish: Callable[..., str] | None = None

    def page(self, where: Where, span: RowSpan) -> Rows:
        """Return the rows of a range, with secrets masked. One statement."""
        rows = self._fetch(self.beyond(where, span), self._in_order(span))
        return replace(rows, items=mask_rows(rows.items))

    def one(self, where: Where, *, secrets: bool = False) -> str | None:
        """Return the matching row or None. Its secrets are masked unless `secrets` is True. One statement."""
        text = next(iter(self._fetch(where, "LIMIT 1").items), None)
        return text if text is None or secrets else mask(text)

    def keys(self, where: Where, span: RowSpan, *also: str, offset: int = 0) -> list[tuple[Any, ...]]:
        """Return only the ordering columns of the rows, and the expressions `also`. One statement.

        `offset`: the number of rows to leave out.
        """
        where = self.beyond(where, span)
        columns = ", ".join([*(key.selected_sql for key in self.order), *also])
        sql = f"SELECT {columns} FROM {self.source} {_where_sql(where)} {self._in_order(span)}"  # noqa: S608 - constants only
        return _fetch_all(f"{sql} OFFSET {int(offset)}" if offset else sql, where)

    def position_at(self, where: Where, span: RowSpan, number: int) -> Position | None:
        """Return the position of the row with this number in a range, from 1; None if the range is shorter.

        One statement.
        """
        row = self.keys(where, replace(span, limit=1), offset=number - 1)
        return Rows([], row, self.order).position_of(0) if row else None

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a row."""
        properties = {column.name: column.schema() for column in self.columns}
        return {"type": "object", "properties": properties, "required": list(properties)}

    def beyond(self, where: Where, span: RowSpan) -> Where:
        """Return `where` with the condition that a row is after the span's position, in the span's direction."""
        if not span.position:
            return where
        columns = ", ".join(key.sql for key in self.order)
        sign = (">" if self.descending == span.backward else "<") + "=" * span.inclusive
        marks = ", ".join(["%s"] * len(self.order))
        values = (key.from_cursor(value) for key, value in zip(self.order, span.position, strict=True))
        # A row comparison, for which the database can use the index.
        return where.also(f"({columns}) {sign} ({marks})", *values)

    def _in_order(self, span: RowSpan) -> str:
        direction = "" if self.descending == span.backward else " DESC"
        return f"ORDER BY {', '.join(key.sql + direction for key in self.order)} LIMIT {int(span.limit)}"

    def _fetch(self, where: Where, rest: str) -> Rows:
        count = len(self.order)
        rows = _fetch_all(f"{self._selects[connection.vendor]} {_where_sql(where)} {rest}", where)
        texts = [row[count] for row in rows]
        if self.finish is not None:
            texts = [self.finish(text, *row[count + 1 :]) for text, row in zip(texts, rows, strict=True)]
        return Rows(texts, [row[:count] for row in rows], self.order, tail=rows[0][count + 1 :] if rows else ())

    @cached_property
    def _selects(self) -> Mapping[str, str]:
        row = ", ".join(f'{column.selected_sql("postgresql")} AS "{column.name}"' for column in self.columns)
        return {
            "sqlite": self._select(_sqlite_object(self.columns)),
            "postgresql": f"{self._select('row_to_json(item)::text')} CROSS JOIN LATERAL (SELECT {row}) AS item",
        }

    def _select(self, row: str) -> str:
        columns = ", ".join([*(key.selected_sql for key in self.order), row, *self.tail])
        return f"SELECT {columns} FROM {self.source}"  # noqa: S608 - constants only


def _sqlite_object(columns: Sequence[Column]) -> str:
    """Return SQL for a JSON object of these columns."""
    members = [f"'{column.name}', {column.selected_sql('sqlite')}" for column in columns]
    first, *rest = (
        f"JSON_OBJECT({', '.join(members[start : start + SQLITE_MEMBERS])})"
        for start in range(0, len(members), SQLITE_MEMBERS)
    )
    for part in rest:
        # Without the last character, and without the first one. A negative length counts backwards.
        first = f"SUBSTR({first}, -1, -1000000000) || ',' || SUBSTR({part}, 2)"
    return first


def _where_sql(where: Where) -> str:
    return f"WHERE {' AND '.join(where.conditions)}" if where.conditions else ""


def _fetch_all(sql: str, where: Where) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, where.params)
        return list(cursor.fetchall())
