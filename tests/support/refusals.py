"""A database that refuses changes of some rows, as it does of values that it cannot hold."""

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
    """Refuse the changes of a table for which a condition is true: of OLD for UPDATE and DELETE, of NEW for INSERT."""
    with connection.cursor() as cursor:
        for statement in CREATE[connection.vendor]:
            cursor.execute(statement.format(change=change, table=table, when=when))
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(DROP[connection.vendor])
