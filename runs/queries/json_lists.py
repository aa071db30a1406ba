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

from runs.queries.json_columns import EPOCH, MICROSECOND, Column, mask, mask_rows

#: Members of one JSON object in SQLite. Its functions take at most 127 arguments (100 in older versions).
SQLITE_MEMBERS = 50
#: The position of a row in the order of its list, as JSON values.
Position = tuple[int | str, ...]


# --- The order of a list --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A column by which a list is ordered, with the conversion of its value to and from a cursor."""

    sql: str
    #: The expression to select, if it differs: a text costs less than an object, and of a page only the values of the
    #: first and the last row are used.
    text_sql: str = ""
    #: Converts a selected value to JSON for a cursor.
    to_cursor: Callable[[Any], int | str] = lambda value: value
    #: Converts a value of a cursor to a query parameter.
    from_cursor: Callable[[Any], Any] = lambda value: value

    @property
    def selected_sql(self) -> str:
        return self.text_sql or self.sql


def _time_to_cursor(text: str) -> int:
    """Return a time in microseconds since 1970. SQLite's text is in UTC and has no zone."""
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
    """The rows of a page, such as JSON texts or model instances, in the order of the query."""

    items: list[Any]
    #: The ordering columns of each row.
    keys: list[tuple[Any, ...]]
    order: Sequence[Key]
    #: The position at which a bounded search stopped. None if it reached the end of the list or found enough rows.
    search_end: Position | None = None
    #: The `tail` expressions of the first row, for values that all rows share.
    tail: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def position_of(self, index: int) -> Position:
        return position_of(self.order, self.keys[index])

    def first(self, count: int) -> Rows:
        return replace(self, items=self.items[:count], keys=self.keys[:count])

    def backwards(self) -> Rows:
        return replace(self, items=self.items[::-1], keys=self.keys[::-1])


def position_of(order: Sequence[Key], values: Sequence[Any]) -> Position:
    """Return the position of a row with these values of the ordering columns."""
    return tuple(key.to_cursor(value) for key, value in zip(order, values, strict=True))


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

    #: Empty for the beginning of the list.
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
    #: Further expressions for `finish`: one for both databases, or one for each.
    tail: Sequence[str | Mapping[str, str]] = ()
    #: Returns the final text of a row, from its text and the values of `tail`.
    finish: Callable[..., str] | None = None

    def page(self, where: Where, span: RowSpan) -> Rows:
        """Return the rows of a range, with secrets masked. One statement."""
        rows = self._fetch(self.beyond(where, span), self._in_order(span))
        return replace(rows, items=mask_rows(rows.items))

    def one(self, where: Where, *, secrets: bool = False) -> str | None:
        """Return the first matching row, or None. Its secrets are masked unless `secrets` is True. One statement."""
        text = next(iter(self._fetch(where, "LIMIT 1").items), None)
        return text if text is None or secrets else mask(text)

    def keys(self, where: Where, span: RowSpan, *also: str, offset: int = 0) -> list[tuple[Any, ...]]:
        """Return the ordering columns of the rows, and the expressions `also`. One statement.

        `offset`: the number of rows to skip.
        """
        where = self.beyond(where, span)
        columns = ", ".join([*(key.selected_sql for key in self.order), *also])
        sql = f"SELECT {columns} FROM {self.source} {_where_sql(where)} {self._in_order(span)}"  # noqa: S608 - constants only
        return _fetch_all(f"{sql} OFFSET {int(offset)}" if offset else sql, where)

    def position_at(self, where: Where, span: RowSpan, number: int) -> Position | None:
        """Return the position of the row with this number (from 1) in a range; None if there are fewer rows.

        One statement.
        """
        keys = self.keys(where, replace(span, limit=1), offset=number - 1)
        return position_of(self.order, keys[0]) if keys else None

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a row."""
        properties = {column.name: column.schema() for column in self.columns}
        return {"type": "object", "properties": properties, "required": list(properties)}

    def beyond(self, where: Where, span: RowSpan) -> Where:
        """Return `where` and the condition that a row follows the span's position in the span's direction."""
        if not span.position:
            return where
        columns = ", ".join(key.sql for key in self.order)
        sign = (">" if self.descending == span.backward else "<") + "=" * span.inclusive
        placeholders = ", ".join(["%s"] * len(self.order))
        values = (key.from_cursor(value) for key, value in zip(self.order, span.position, strict=True))
        # A row comparison, for which the database can use the index.
        return where.also(f"({columns}) {sign} ({placeholders})", *values)

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
            "sqlite": self._select("sqlite", _sqlite_object(self.columns)),
            "postgresql": f"{self._select('postgresql', 'row_to_json(item)::text')}"
            f" CROSS JOIN LATERAL (SELECT {row}) AS item",
        }

    def _select(self, vendor: str, row: str) -> str:
        tail = [sql if isinstance(sql, str) else sql[vendor] for sql in self.tail]
        columns = ", ".join([*(key.selected_sql for key in self.order), row, *tail])
        return f"SELECT {columns} FROM {self.source}"  # noqa: S608 - constants only


def _sqlite_object(columns: Sequence[Column]) -> str:
    """Return SQL for a JSON object of these columns, joined from objects of at most `SQLITE_MEMBERS`."""
    members = [f"'{column.name}', {column.selected_sql('sqlite')}" for column in columns]
    first, *rest = (
        f"JSON_OBJECT({', '.join(members[start : start + SQLITE_MEMBERS])})"
        for start in range(0, len(members), SQLITE_MEMBERS)
    )
    for part in rest:
        # Join two objects: the first without its "}", the second without its "{". A negative length counts backwards.
        first = f"SUBSTR({first}, -1, -1000000000) || ',' || SUBSTR({part}, 2)"
    return first


def _where_sql(where: Where) -> str:
    return f"WHERE {' AND '.join(where.conditions)}" if where.conditions else ""


def _fetch_all(sql: str, where: Where) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, where.params)
        return list(cursor.fetchall())
