"""Fast INSERTs and SELECTs of model instances without the ORM's query compiler, for batches of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from types import NoneType
from typing import Any, TypeVar, cast
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connection, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models.base import ModelState

M = TypeVar("M", bound=models.Model)
#: Number of rows from which COPY is used instead of INSERT on PostgreSQL: with ten rows or more it is twice as fast.
COPY_FROM = 4


def insert(cursor: CursorWrapper, rows: Sequence[models.Model]) -> None:
    """Insert `rows`, which must be of one model. Generated primary keys are not read back."""
    if not rows:
        return
    table, group, fields = _insert_statement(type(rows[0]))
    # Not the proxy: fields read several of its attributes per value.
    database = connections[DEFAULT_DB_ALIAS]
    values = [
        [
            value if type(value := getattr(row, name)) in as_is else field.get_db_prep_save(value, database)
            for name, field, as_is in fields
        ]
        for row in rows
    ]
    if len(rows) < COPY_FROM or database.vendor != "postgresql":
        cursor.execute(f"INSERT INTO {table} VALUES {','.join([group] * len(rows))}", list(chain(*values)))  # noqa: S608
        return
    with database.wrap_database_errors, cursor.cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for row_values in values:
            copy.write_row(row_values)


@cache
def _insert_statement(
    model: type[models.Model],
) -> tuple[str, str, list[tuple[str, models.Field[Any, Any], frozenset[type]]]]:
    """Return the table with its columns, the placeholders of a row, and each field with its unconverted types."""
    fields = [f for f in model._meta.concrete_fields if not isinstance(f, models.AutoField)]
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(f.column)) for f in fields)
    group = "(" + ", ".join(["%s"] * len(fields)) + ")"
    return f"{quote(model._meta.db_table)} ({columns})", group, [(f.attname, f, _types_as_is(f)) for f in fields]


def _types_as_is(field: models.Field[Any, Any]) -> frozenset[type]:
    """Return the types of values that the field does not convert for the database. Asking it per value takes longer."""
    kind = field.target_field if isinstance(field, models.ForeignKey) else field
    if isinstance(kind, models.CharField | models.TextField):
        return frozenset({NoneType, str})
    if isinstance(kind, models.IntegerField):
        return frozenset({NoneType, int})
    if isinstance(kind, models.UUIDField) and connection.features.has_native_uuid_field:
        return frozenset({NoneType, UUID})
    return frozenset({NoneType})


def select(model: type[M], condition: str, parameters: Sequence[object]) -> list[M]:
    """Return the instances that match a condition: SQL, optionally followed by clauses such as ORDER BY.

    Column names are unqualified. Filters of the model's manager do not apply.
    """
    found = select_joined((model,), f"{model._meta.db_table} WHERE {condition}", parameters)
    return [cast("M", instance) for (instance,) in found]


def select_joined(
    kinds: tuple[type[models.Model], ...], tables: str, parameters: Sequence[object]
) -> list[tuple[models.Model, ...]]:
    """Return an instance of each model per row of an inner join. `tables`: SQL after FROM, without aliases."""
    columns, shapes = _select_statement(kinds)
    database = connections[DEFAULT_DB_ALIAS]
    with prepared_cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {tables}", [_column_value(value) for value in parameters])  # noqa: S608
        rows = cursor.fetchall()
    return [tuple(shape.instance(row, database) for shape in shapes) for row in rows]


def prepared_cursor() -> CursorWrapper:
    """Return a cursor for repeated statements of requests or steps: PostgreSQL plans each once per connection.

    A plan made while a table was small is kept until the table is analysed: it may read the whole table.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]
    cursor: CursorWrapper = database.prepared_cursor() if database.vendor == "postgresql" else database.cursor()
    return cursor


def locked(condition: str, *, key: bool = True) -> str:
    """Return the condition of a SELECT that locks its rows, if the database has row locks.

    Unless `key` is set, other transactions may still insert rows that refer to them.
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
        #: The position of a column, its expression, and the functions that convert its value.
        self._converters: list[tuple[int, Any, list[Callable[[Any, Any, Any], Any]]]] = []
        for place, field in enumerate(fields):
            expression = field.get_col(model._meta.db_table)
            functions = [*connection.ops.get_db_converters(expression), *expression.get_db_converters(connection)]
            if functions:
                self._converters.append((place, expression, functions))
        self.end = begin + len(fields)

    def instance(self, row: Sequence[Any], database: BaseDatabaseWrapper) -> models.Model:
        values = list(row[self._span])
        for place, expression, functions in self._converters:
            for convert in functions:
                values[place] = convert(values[place], expression, database)
        # As in from_db. The model's constructor, which also accepts names, would take longer than the query.
        instance = self._model.__new__(self._model)
        instance.__dict__.update(zip(self._names, values, strict=True))
        instance._state = ModelState()
        instance._state.adding, instance._state.db = False, DEFAULT_DB_ALIAS
        return instance


@cache
def _select_statement(kinds: tuple[type[models.Model], ...]) -> tuple[str, list[_Shape]]:
    quote = connection.ops.quote_name
    columns: list[str] = []
    shapes: list[_Shape] = []
    for model in kinds:
        table = quote(model._meta.db_table)
        columns += [f"{table}.{quote(str(field.column))}" for field in model._meta.concrete_fields]
        shapes.append(_Shape(model, shapes[-1].end if shapes else 0))
    return ", ".join(columns), shapes
