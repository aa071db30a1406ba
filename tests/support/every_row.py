"""The rows of every table of the database. May import Django only."""

from __future__ import annotations

import json
from typing import Any

from django.db import connection


def rows_with(text: str) -> list[tuple[str, str]]:
    """Return the rows that contain this text in any column, as table name and row. An empty text matches all rows."""
    found = []
    with connection.cursor() as cursor:
        for table in sorted(connection.introspection.table_names(cursor)):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            found += [(table, row) for row in map(_as_text, cursor.fetchall()) if text in row]
    return found


def _as_text(row: tuple[Any, ...]) -> str:
    return "\x1f".join(map(_column_as_text, row))


def _column_as_text(value: Any) -> str:
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("latin-1")
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
