"""A fast SELECT of model instances, without the ORM's query compiler, for queries that every batch of events makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connection, connections, models

M = TypeVar("M", bound=models.Model)
#: The place of a column, its expression, and the functions that convert its value.
_Converters = list[tuple[int, Any, list[Callable[[Any, Any, Any], Any]]]]


def select(model: type[M], condition: str, parameters: Sequence[object]) -> list[M]:
    """Return the instances for which a condition is true: SQL, with what may follow it, such as ORDER BY.

    Column names stand alone in it. Filters of the model's manager do not apply.
    """
    sql, names, converters = _statement(model)
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
def _statement(model: type[models.Model]) -> tuple[str, list[str], _Converters]:
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
