"""Rows of a list as JSON text, made where that is cheapest: by Postgres itself, or beside SQLite's driver.

A list is read by keyset in a constant number of statements and becomes no
objects on the way; the answer is the same to the byte on both databases.
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
#: Where a row stands in the order of its list, as JSON can hold it: numbers, and texts.
Place = tuple[int | str, ...]


# --- The order of a list --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A column of the order: how a cursor keeps its value, and how the database is asked with that again."""

    sql: str
    #: What is selected: a text, which costs less than an object, where only the first and the last are looked at.
    told: str = ""
    kept: Callable[[Any], int | str] = lambda value: value
    asked: Callable[[Any], Any] = lambda kept: kept
    #: Letters stand in the order of their codes, whatever the database's language.
    text: bool = False

    @property
    def selected(self) -> str:
        return self.told or self.sql

    @property
    def compared(self) -> str:
        return f'{self.sql} COLLATE "C"' if self.text and connection.vendor == "postgresql" else self.sql


def _kept_time(told: str) -> int:
    """SQLite's text has no zone, Postgres' has that of the connection."""
    moment = datetime.fromisoformat(told)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def time_param(moment: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(moment)


def id_param(value: UUID) -> Any:
    return value if connection.features.has_native_uuid_field else value.hex


def by_time(sql: str) -> Key:
    return Key(sql, f"CAST({sql} AS text)", _kept_time, lambda kept: time_param(EPOCH + kept * MICROSECOND))


def by_id(sql: str) -> Key:
    return Key(sql, f"CAST({sql} AS text)", lambda told: UUID(told).hex, lambda kept: id_param(UUID(hex=kept)))


@dataclass(frozen=True)
class Rows:
    """What was read, in the order it was read in."""

    texts: list[str]
    #: Of each row, the values of the order's columns.
    keys: list[tuple[Any, ...]]
    order: Sequence[Key]
    #: Of a search that did not look through everything: the place that it came to.
    reached: Place | None = None
    #: The tail of the first row, for what is the same in all.
    tail: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def place(self, index: int) -> Place:
        return tuple(key.kept(value) for key, value in zip(self.order, self.keys[index], strict=True))

    def first(self, count: int) -> Rows:
        return replace(self, texts=self.texts[:count], keys=self.keys[:count])

    def backwards(self) -> Rows:
        return replace(self, texts=self.texts[::-1], keys=self.keys[::-1])


# --- A list ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """Conditions that all hold, with their parameters in order."""

    conditions: tuple[str, ...] = ()
    params: tuple[Any, ...] = ()

    def also(self, condition: str, *params: Any) -> Where:
        return Where((*self.conditions, condition), (*self.params, *params))


@dataclass(frozen=True)
class RowSpan:
    """Which rows of a list: from a place on, in one direction."""

    place: Place = ()
    backward: bool = False
    #: The row at the place itself too.
    inclusive: bool = False
    limit: int = 50


@dataclass(frozen=True)
class Listing:
    """Rows of one kind: where they come from, what each says, and in which order they stand."""

    source: str
    columns: Sequence[Column]
    order: Sequence[Key]
    descending: bool = False
    #: Further expressions, valid on both databases, that `finish` needs besides the text of a row; and what makes of
    #: SQLite's value the one that Postgres gives.
    tail: Sequence[tuple[str, Callable[[Any], Any]]] = ()
    finish: Callable[..., str] | None = None

    def page(self, where: Where, span: RowSpan) -> Rows:
        """Return the rows, without secrets. One statement."""
        found = self._read(self.beyond(where, span), self._in_order(span))
        return replace(found, texts=masked_rows(found.texts))

    def one(self, where: Where, *, secrets: bool = False) -> str | None:
        """Return the row, with its `secrets` only for who may see them. One statement."""
        text = next(iter(self._read(where, "LIMIT 1").texts), None)
        return text if text is None or secrets else masked(text)

    def keys(self, where: Where, span: RowSpan, *also: str) -> list[tuple[Any, ...]]:
        """The order's columns of the rows alone, and `also` these expressions. One statement."""
        where = self.beyond(where, span)
        selected = ", ".join([*(key.selected for key in self.order), *also])
        sql = f"SELECT {selected} FROM {self.source} {_said(where)} {self._in_order(span)}"  # noqa: S608 - all ours
        return _all(sql, where)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a row."""
        properties = {column.name: column.schema() for column in self.columns}
        return {"type": "object", "properties": properties, "required": list(properties)}

    def beyond(self, where: Where, span: RowSpan) -> Where:
        """`where`, and on the span's side of its place."""
        if not span.place:
            return where
        columns = ", ".join(key.compared for key in self.order)
        sign = (">" if self.descending == span.backward else "<") + "=" * span.inclusive
        marks = ", ".join(["%s"] * len(self.order))
        values = (key.asked(kept) for key, kept in zip(self.order, span.place, strict=True))
        # Compared as rows: the index finds the first one without a search.
        return where.also(f"({columns}) {sign} ({marks})", *values)

    def _in_order(self, span: RowSpan) -> str:
        direction = "" if self.descending == span.backward else " DESC"
        return f"ORDER BY {', '.join(key.compared + direction for key in self.order)} LIMIT {int(span.limit)}"

    def _read(self, where: Where, rest: str) -> Rows:
        vendor, keys = connection.vendor, len(self.order)
        found = _all(f"{self._selects[vendor]} {_said(where)} {rest}", where)
        tails = [row[len(row) - len(self.tail) :] for row in found]
        if vendor == "postgresql":
            texts = [row[keys] for row in found]
        else:
            texts = [self._assembled(row[keys:]) for row in found]
            tails = [tuple(as_in(value) for (_, as_in), value in zip(self.tail, row, strict=True)) for row in tails]
        if self.finish is not None:
            texts = [self.finish(text, *tail) for text, tail in zip(texts, tails, strict=True)]
        return Rows(texts, [row[:keys] for row in found], self.order, tail=tails[0] if tails else ())

    @cached_property
    def _selects(self) -> Mapping[str, str]:
        return {"postgresql": self._select_postgres(), "sqlite": self._select_sqlite()}

    def _select_postgres(self) -> str:
        row = ", ".join(f'{column.selected("postgresql")} AS "{column.name}"' for column in self.columns)
        selected = self._selected(["row_to_json(made)::text"])
        return f"SELECT {selected} FROM {self.source} CROSS JOIN LATERAL (SELECT {row}) AS made"  # noqa: S608 - all ours

    def _select_sqlite(self) -> str:
        selected = self._selected([column.selected("sqlite") for column in self.columns])
        return f"SELECT {selected} FROM {self.source}"  # noqa: S608 - all ours

    def _selected(self, row: list[str]) -> str:
        return ", ".join([*(key.selected for key in self.order), *row, *(sql for sql, _ in self.tail)])

    def _assembled(self, values: Sequence[Any]) -> str:
        members = (
            f'"{column.name}":{"null" if value is None else column.kind.dumps(value)}'
            for column, value in zip(self.columns, values, strict=False)
        )
        return "{" + ",".join(members) + "}"


def _said(where: Where) -> str:
    return f"WHERE {' AND '.join(where.conditions)}" if where.conditions else ""


def _all(sql: str, where: Where) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, where.params)
        return list(cursor.fetchall())
