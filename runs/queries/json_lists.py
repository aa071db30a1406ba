"""Rows of a list as JSON text, made by the database itself.

A list is read by keyset in a constant number of statements and becomes no objects on the way.
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

    @property
    def selected(self) -> str:
        return self.told or self.sql


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
    """What was read, in the order it was read in: rows as JSON text, or as a model's objects."""

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
    #: Further expressions, valid on both databases, that `finish` needs besides the text of a row.
    tail: Sequence[str] = ()
    finish: Callable[..., str] | None = None

    def page(self, where: Where, span: RowSpan) -> Rows:
        """Return the rows, without secrets. One statement."""
        found = self._read(self.beyond(where, span), self._in_order(span))
        return replace(found, found=masked_rows(found.found))

    def one(self, where: Where, *, secrets: bool = False) -> str | None:
        """Return the row, with its `secrets` only for who may see them. One statement."""
        text = next(iter(self._read(where, "LIMIT 1").found), None)
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
        columns = ", ".join(key.sql for key in self.order)
        sign = (">" if self.descending == span.backward else "<") + "=" * span.inclusive
        marks = ", ".join(["%s"] * len(self.order))
        values = (key.asked(kept) for key, kept in zip(self.order, span.place, strict=True))
        # Compared as rows: the index finds the first one without a search.
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
