"""Empties the database after each test with real commits (transactional_db), in place of Django's flush.

A plugin of the suite (tests/conftest.py names it). Django truncates every table and recreates content types and
permissions, which takes about 0.1 s per test. This plugin empties only tables with rows, and keeps those two.

PostgreSQL still reads past deleted and rolled-back rows of earlier tests until a VACUUM. After two thousand tests this
takes most of the server's time. Autovacuum runs too rarely for a database that exists for minutes.
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

#: Filled by the migrations, with the same rows for every test.
KEPT_TABLES = frozenset({ContentType._meta.db_table, Permission._meta.db_table, "django_migrations"})
#: Number of clean-ups between two VACUUMs of PostgreSQL's tables.
VACUUM_EVERY = 25
CLEANUPS = itertools.count(1)


def own_tables() -> list[str]:
    """Return the names of all tables that tests may fill."""
    existing = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return sorted(set(existing) - KEPT_TABLES)


def tables_with_rows() -> list[str]:
    """Return the names of tables that a test has filled, in any order: foreign keys are checked at the commit."""
    tables = own_tables()
    exists = ", ".join(f"EXISTS (SELECT 1 FROM {connection.ops.quote_name(table)})" for table in tables)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {exists}")
        return [table for table, has_rows in zip(tables, cursor.fetchone(), strict=True) if has_rows]


def empty_tables() -> None:
    """Delete the rows of all tables except KEPT_TABLES, as maintenance: append-only triggers refuse other deletes."""
    door = MaintenanceDoor._meta.db_table
    with transaction.atomic(), connection.cursor() as cursor:
        tables = set(tables_with_rows())
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL agentops.maintenance = 'on'")
        elif tables:
            MaintenanceDoor.objects.create(reason="cleanup after a test")
            tables.add(door)
        # This table is last: without its row, SQLite's triggers refuse again.
        for table in sorted(tables, key=lambda table: (table == door, table)):
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


def vacuum() -> None:
    """Free the pages of deleted rows. No ANALYZE: a test that needs statistics runs it."""
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM {', '.join(map(connection.ops.quote_name, own_tables()))}")


def handle(self: flush.Command, **options: Any) -> None:
    """Replace the command `flush`, with which Django's test case empties the database."""
    empty_tables()
    if connection.vendor == "postgresql" and next(CLEANUPS) % VACUUM_EVERY == 0:
        vacuum()


flush.Command.handle = handle


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Disable waiting for the disk at commits to a PostgreSQL test database. Only a server crash could lose data."""
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock():
            name = connection.ops.quote_name(connection.settings_dict["NAME"])
            with connection.cursor() as cursor:
                cursor.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
            connection.close()
