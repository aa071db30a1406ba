"""A fast INSERT of model instances, without the ORM's query compiler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection, connections, models
from django.db.backends.utils import CursorWrapper


def insert(cursor: CursorWrapper, rows: Sequence[models.Model]) -> None:
    """Insert `rows`, which must be of one model. Generated primary keys are not read back."""
    if not rows:
        return
    sql, group, fields = _statement(type(rows[0]))
    # Not the proxy: fields ask it for several attributes per value. NULL needs no conversion.
    database = connections[DEFAULT_DB_ALIAS]
    values = [
        value if (value := getattr(row, f.attname)) is None else f.get_db_prep_save(value, database)
        for row in rows
        for f in fields
    ]
    cursor.execute(sql + ",".join([group] * len(rows)), values)


@cache
def _statement(model: type[models.Model]) -> tuple[str, str, list[Any]]:
    fields = [f for f in model._meta.concrete_fields if not isinstance(f, models.AutoField)]
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(f.column)) for f in fields)
    group = "(" + ", ".join(["%s"] * len(fields)) + ")"
    return f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ", group, fields  # noqa: S608 - names of our models
