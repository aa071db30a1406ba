"""Fast INSERTs and SELECTs of model instances, without the ORM's query compiler: every batch of events makes some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeVar
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connection, connections, models
from django.db.backends.utils import CursorWrapper

M = TypeVar("M", bound=models.Model)
#: The place of a column, its expression, and the functions that convert its value.
_Converters = list[tuple[int, Any, list[Callable[[Any, Any, Any], Any]]]]
#: From so many rows on, COPY is faster than INSERT on PostgreSQL: twice as fast with ten rows or more.
_COPY_FROM = 4


def insert(cursor: CursorWrapper, rows: Sequence[models.Model]) -> None:
    """Insert `rows`, which must be of one model. Generated primary keys are not read back."""
    if not rows:
        return
    table, group, fields = _insert_statement(type(rows[0]))
    # Not the proxy: fields ask it for several attributes per value. NULL needs no conversion.
    database = connections[DEFAULT_DB_ALIAS]
    values = [
        [value if (value := getattr(row, f.attname)) is None else f.get_db_prep_save(value, database) for f in fields]
        for row in rows
    ]
    if len(rows) < _COPY_FROM or database.vendor != "postgresql":
        cursor.execute(f"INSERT INTO {table} VALUES {','.join([group] * len(rows))}", list(chain(*values)))  # noqa: S608
        return
    with database.wrap_database_errors, cursor.cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for row_values in values:
            copy.write_row(row_values)


@cache
def _insert_statement(model: type[models.Model]) -> tuple[str, str, list[Any]]:
    fields = [f for f in model._meta.concrete_fields if not isinstance(f, models.AutoField)]
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(f.column)) for f in fields)
    group = "(" + ", ".join(["%s"] * len(fields)) + ")"
    return f"{quote(model._meta.db_table)} ({columns})", group, fields


def select(model: type[M], condition: str, parameters: Sequence[object]) -> list[M]:
    """Return the instances for which a condition is true: SQL, with what may follow it, such as ORDER BY.

    Column names stand alone in it. Filters of the model's manager do not apply.
    """
    sql, names, converters = _select_statement(model)
    database = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        cursor.execute(sql + condition, [_column_value(value) for value in parameters])
        rows = [list(row) for row in cursor.fetchall()]
    for row in rows:
        for place, expression, functions in converters:
            for convert in functions:
                row[place] = convert(row[place], expression, database)
    return [model.from_db(DEFAULT_DB_ALIAS, names, row) for row in rows]


def locked(condition: str, *, key: bool = True) -> str:
    """Return the condition of a SELECT that locks its rows, if the database has row locks.

    Unless `key` is set, other rows may refer to them meanwhile.
    """
    if not connection.features.has_select_for_update:
        return condition
    return f"{condition} FOR {'UPDATE' if key else 'NO KEY UPDATE'}"


def _column_value(value: object) -> Any:
    return value.hex if isinstance(value, UUID) and not connection.features.has_native_uuid_field else value


@cache
def _select_statement(model: type[models.Model]) -> tuple[str, list[str], _Converters]:
    fields = model._meta.concrete_fields
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(field.column)) for field in fields)
    sql = f"SELECT {columns} FROM {quote(model._meta.db_table)} WHERE "  # noqa: S608 - names of our models
    converters: _Converters = []
    for place, field in enumerate(fields):
        expression = field.get_col(model._meta.db_table)
        functions = [*connection.ops.get_db_converters(expression), *expression.get_db_converters(connection)]
        if functions:
            converters.append((place, expression, functions))
    return sql, [field.attname for field in fields], converters
