"""A database that refuses to change certain rows, as it refuses values that it cannot store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

CREATE = {
    "sqlite": [
        "CREATE TRIGGER refuse_changes BEFORE {change} ON {table} WHEN {when}"
        " BEGIN SELECT RAISE(ABORT, 'refused'); END",
    ],
    "postgresql": [
        """CREATE FUNCTION refuse_changes() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'invalid_text_representation'; END $$""",
        "CREATE TRIGGER refuse_changes BEFORE {change} ON {table} FOR EACH ROW WHEN ({when})"
        " EXECUTE FUNCTION refuse_changes()",
    ],
}
DROP = {"sqlite": "DROP TRIGGER refuse_changes", "postgresql": "DROP FUNCTION refuse_changes CASCADE"}


@contextmanager
def refusing(change: str, table: str, when: str) -> Iterator[None]:
    """Refuse changes of a table's rows that match a condition on OLD (UPDATE, DELETE) or NEW (INSERT)."""
    with connection.cursor() as cursor:
        for statement in CREATE[connection.vendor]:
            cursor.execute(statement.format(change=change, table=table, when=when))
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(DROP[connection.vendor])
