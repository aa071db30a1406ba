"""Empties the database after each test with real commits (transactional_db), in place of Django's flush.

A plugin of the suite (tests/conftest.py names it). Django truncates every table and then makes content types and
permissions anew, about 0.1 s for each test; here only the tables that hold rows are emptied, and those two stay.

On PostgreSQL the rows of earlier tests, deleted or rolled back, are still read past until a VACUUM: after two thousand
tests most of the server's time. Its own comes too seldom for a database that lives for minutes.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management.commands import flush
from django.db import connection, transaction

from timeline.models import MaintenanceDoor

#: Filled by the migrations and the same for every test.
KEPT_TABLES = frozenset({ContentType._meta.db_table, Permission._meta.db_table, "django_migrations"})
#: So many clean-ups lie between two of PostgreSQL's tables being freed of the rows that are gone.
VACUUM_EVERY = 25
CLEANUPS = itertools.count(1)


def own_tables() -> list[str]:
    """The names of all tables that tests may fill."""
    existing = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return sorted(set(existing) - KEPT_TABLES)


def tables_with_rows() -> list[str]:
    """The names of tables that a test has filled, in no particular order: foreign keys are checked at the commit."""
    tables = own_tables()
    exists = ", ".join(f"EXISTS (SELECT 1 FROM {connection.ops.quote_name(table)})" for table in tables)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {exists}")
        return [table for table, has_rows in zip(tables, cursor.fetchone(), strict=True) if has_rows]


def empty_tables() -> None:
    """Delete the rows of all tables but KEPT_TABLES, as maintenance: the append-only triggers refuse anybody else."""
    door = MaintenanceDoor._meta.db_table
    with transaction.atomic(), connection.cursor() as cursor:
        tables = set(tables_with_rows())
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL agentops.maintenance = 'on'")
        elif tables:
            MaintenanceDoor.objects.create(reason="cleanup after a test")
            tables.add(door)
        # With the row of this table gone, SQLite's triggers refuse again: it goes last.
        for table in sorted(tables, key=lambda table: (table == door, table)):
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


def vacuum() -> None:
    """Free the pages of the rows that are gone; without ANALYZE, as a test that wants statistics asks for them."""
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM {', '.join(map(connection.ops.quote_name, own_tables()))}")


def handle(self: flush.Command, **options: Any) -> None:
    """Replace the command `flush`, which Django's test case calls to empty the database."""
    empty_tables()
    if connection.vendor == "postgresql" and next(CLEANUPS) % VACUUM_EVERY == 0:
        vacuum()


flush.Command.handle = handle


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Let commits to a PostgreSQL database made for tests not wait for its disk: only a crash of the server tells."""
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock():
            name = connection.ops.quote_name(connection.settings_dict["NAME"])
            with connection.cursor() as cursor:
                cursor.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
            connection.close()
