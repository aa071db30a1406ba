"""Fast INSERTs and SELECTs of model instances, calls after a commit, and the faults of a database.

The statements are for batches of events, for which the ORM's query compiler takes too long.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast
from uuid import UUID

from django.conf import settings
from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    connection,
    connections,
    models,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models.base import ModelState

from agentops.base.database.joined_json import JoinedJSONField

M = TypeVar("M", bound=models.Model)
#: Number of rows from which COPY replaces INSERT on PostgreSQL. With ten rows or more it is twice as fast.
COPY_FROM = 4


def insert(cursor: CursorWrapper, rows: Sequence[models.Model]) -> None:
    """Insert `rows`, which must be of one model. Generated primary keys are not read back."""
    if not rows:
        return
    table, placeholders, fields = _insert_statement(type(rows[0]))
    # Not `connection`, a slow proxy: fields read several attributes of it for each value.
    database = connections[DEFAULT_DB_ALIAS]
    values = [
        [
            value if type(value := getattr(row, name)) in unconverted else field.get_db_prep_save(value, database)
            for name, field, unconverted in fields
        ]
        for row in rows
    ]
    if len(rows) < COPY_FROM or database.vendor != "postgresql":
        groups = ",".join([placeholders] * len(rows))
        cursor.execute(f"INSERT INTO {table} VALUES {groups}", list(chain(*values)))  # noqa: S608
        return
    with database.wrap_database_errors, cursor.cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for row_values in values:
            copy.write_row(row_values)


@cache
def _insert_statement(
    model: type[models.Model],
) -> tuple[str, str, list[tuple[str, models.Field[Any, Any], frozenset[type]]]]:
    """Return the table with its columns, the placeholders of a row, and the fields.

    Each field comes as the name of its attribute, the field, and the types of values that it does not convert.
    """
    fields = [f for f in model._meta.concrete_fields if not isinstance(f, models.AutoField)]
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(f.column)) for f in fields)
    placeholders = "(" + ", ".join(["%s"] * len(fields)) + ")"
    table = f"{quote(model._meta.db_table)} ({columns})"
    return table, placeholders, [(field.attname, field, _unconverted_types(field)) for field in fields]


def _unconverted_types(field: models.Field[Any, Any]) -> frozenset[type]:
    """Return the types of values that the field does not convert for the database."""
    kind = field.target_field if isinstance(field, models.ForeignKey) else field
    if isinstance(kind, models.CharField | models.TextField):
        return frozenset({NoneType, str})
    if isinstance(kind, models.IntegerField):
        return frozenset({NoneType, int})
    if isinstance(kind, models.UUIDField) and connection.features.has_native_uuid_field:
        return frozenset({NoneType, UUID})
    return frozenset({NoneType})


def select(model: type[M], condition: str, parameters: Sequence[object]) -> list[M]:
    """Return the instances that match a condition: SQL after WHERE, with clauses such as ORDER BY.

    Filters of the model's manager do not apply.
    """
    rows = select_joined((model,), f"{model._meta.db_table} WHERE {condition}", parameters)
    return [cast("M", instance) for (instance,) in rows]


def select_joined(
    kinds: tuple[type[models.Model], ...], tables: str, parameters: Sequence[object]
) -> list[tuple[models.Model, ...]]:
    """Return an instance of each model for each row of an inner join. `tables`: SQL after FROM, without aliases."""
    columns, shapes = _select_statement(kinds)
    database = connections[DEFAULT_DB_ALIAS]
    with prepared_cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {tables}", [_column_value(value) for value in parameters])  # noqa: S608
        rows = cursor.fetchall()
    return [tuple(shape.instance(row, database) for shape in shapes) for row in rows]


def prepared_cursor() -> CursorWrapper:
    """Return a cursor for statements that requests or steps repeat: PostgreSQL plans each once per connection.

    A plan is kept until the table is analysed. One that was made while the table was small may read the whole table.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]
    cursor: CursorWrapper = database.prepared_cursor() if database.vendor == "postgresql" else database.cursor()
    return cursor


def locked(condition: str, *, key: bool = True) -> str:
    """Return the condition of a SELECT with a clause that locks the rows, if the database has row locks.

    Without `key`, other transactions may still insert rows that refer to the locked ones.
    """
    if not connection.features.has_select_for_update:
        return condition
    return f"{condition} FOR {'UPDATE' if key else 'NO KEY UPDATE'}"


def _column_value(value: object) -> Any:
    return value.hex if isinstance(value, UUID) and not connection.features.has_native_uuid_field else value


class _Shape:
    """The positions of a model's columns in a row, and their conversions."""

    def __init__(self, model: type[models.Model], begin: int) -> None:
        fields = model._meta.concrete_fields
        self._model, self._names = model, [field.attname for field in fields]
        self._span = slice(begin, begin + len(fields))
        #: For each column with converted values: its position, its expression, and the functions that convert a value.
        self._converters: list[tuple[int, Any, list[Callable[[Any, Any, Any], Any]]]] = []
        for position, field in enumerate(fields):
            expression = field.get_col(model._meta.db_table)
            functions = [*connection.ops.get_db_converters(expression), *expression.get_db_converters(connection)]
            if functions:
                self._converters.append((position, expression, functions))
        self.end = begin + len(fields)

    def instance(self, row: Sequence[Any], database: BaseDatabaseWrapper) -> models.Model:
        """Return the instance in a row."""
        values = list(row[self._span])
        for position, expression, functions in self._converters:
            for convert in functions:
                values[position] = convert(values[position], expression, database)
        # Created as in `Model.from_db`. The constructor would take longer than the query.
        instance = self._model.__new__(self._model)
        instance.__dict__.update(zip(self._names, values, strict=True))
        instance._state = ModelState()
        instance._state.adding, instance._state.db = False, DEFAULT_DB_ALIAS
        return instance


@cache
def _select_statement(kinds: tuple[type[models.Model], ...]) -> tuple[str, list[_Shape]]:
    """Return the columns of a SELECT, and for each model the conversion of a row."""
    columns: list[str] = []
    shapes: list[_Shape] = []
    for model in kinds:
        columns.append(columns_of(model))
        shapes.append(_Shape(model, shapes[-1].end if shapes else 0))
    return ", ".join(columns), shapes


@cache
def columns_of(model: type[models.Model]) -> str:
    """Return the SQL that reads the fields of a model from its table, for a SELECT."""
    quote = connection.ops.quote_name
    table = quote(model._meta.db_table)
    columns = []
    for field in model._meta.concrete_fields:
        name = quote(str(field.column))
        if isinstance(field, JoinedJSONField):
            columns.append(f"{field.expression(table, connection.vendor)} AS {name}")
        else:
            columns.append(f"{table}.{name}")
    return ", ".join(columns)


def after_commit(call: Callable[..., object], *args: Any, **named: Any) -> None:
    """Call `call` after the current transaction commits; at once without a transaction. Errors are only logged."""

    def call_with_arguments() -> None:
        call(*args, **named)

    # Django names the function by this attribute when it logs an error. A functools.partial has none.
    call_with_arguments.__qualname__ = getattr(call, "__qualname__", repr(call))
    transaction.on_commit(call_with_arguments, robust=True)


#: SQLSTATEs of PostgreSQL. For a read-only server, psycopg raises an `InternalError`.
PG_DISK_FULL, PG_READ_ONLY = "53100", "25006"
#: SQLSTATEs of sessions that the server ended because a transaction was idle, or took, too long. psycopg raises an
#: `InternalError` for these, and an `OperationalError` for all other ended sessions (57P01 to 57P05, class 08).
PG_ENDED_SESSION = frozenset({"25P03", "25P04"})
#: Free bytes below which an I/O error of SQLite means a full disk.
MIN_FREE_BYTES = 64 * 1024


@dataclass(frozen=True)
class StorageFault:
    """A reason for which the database cannot be used."""

    #: For programs.
    reason: str
    #: Follows "the database cannot be used:".
    short: str
    #: For people: what is wrong, and what to do.
    advice: str


DISK_FULL = StorageFault(
    "disk_full",
    "its disk is full",
    "The disk of the database is full. Nothing was changed. Free disk space, then retry.",
)
READ_ONLY = StorageFault(
    "read_only", "it is read-only", "The database is read-only at the moment. Nothing was changed. Try again later."
)
NO_ANSWER = StorageFault(
    "no_answer",
    "it does not answer",
    "The database does not answer. Nothing was changed. Try again in 5 seconds.",
)


def fault_of(error: BaseException) -> StorageFault | None:
    """Return the fault of the database that caused an error; None if the error has another cause."""
    if not isinstance(error, Error):
        return None
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None)
    if state == PG_DISK_FULL:
        return DISK_FULL
    if state == PG_READ_ONLY:
        return READ_ONLY
    if state in PG_ENDED_SESSION:
        return NO_ANSWER
    if isinstance(error, InternalError) or not isinstance(error, OperationalError | InterfaceError):
        return None
    # The lowest byte of an extended code is the primary code.
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (
        code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and not _has_free_space()
    ):
        return DISK_FULL
    return READ_ONLY if code == sqlite3.SQLITE_READONLY else NO_ANSWER


def _has_free_space() -> bool:
    try:
        return shutil.disk_usage(Path(settings.DATABASES["default"]["NAME"]).parent).free >= MIN_FREE_BYTES
    except OSError:
        return True
