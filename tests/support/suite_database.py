"""The suite's database: one migrated copy for each worker, emptied after each test, and checked if runs were written.

A plugin of the suite (tests/conftest.py names it).

- Each worker of pytest-xdist gets a copy of one database that the first worker has migrated: migrating takes seconds, a
  copy almost no time. The copy has the name that Django and pytest-django chose for the worker's database. Django
  treats it as a kept database, and finds no missing migrations. Without pytest-xdist, and with --reuse-db, --create-db
  or --no-migrations, Django creates and drops the database as usual.
- Real commits (transactional_db) are removed from tables with rows only. Django's flush truncates every table and
  recreates content types and permissions, which takes about 0.1 s per test. PostgreSQL still reads past deleted and
  rolled-back rows of earlier tests until a VACUUM. After two thousand tests this takes most of the server's time.
  Autovacuum runs too rarely for a database that exists for minutes.
- After every test that wrote runs, they must keep all invariants, and each log must agree with its rows. A test that
  corrupts rows deliberately, or creates rows that the product never would, is marked
  `@pytest.mark.breaks_invariants("why")`. On PostgreSQL, a pass of the suite that follows one on SQLite does not repeat
  the check after tests of pages, the API and commands.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management.commands import flush
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from runs.models import AgentRun, FlowRun
from runs.upkeep.invariants import check
from runs.upkeep.replay_check import differences, flow_differences
from tests.support.databases import Databases
from tests.support.machine import ROOT
from tests.support.second_pass import is_of_a_door, runs_after_sqlite
from timeline.models import MaintenanceDoor

#: Options of pytest-django that select the source of the database.
OPTIONS = ("reuse_db", "create_db", "nomigrations")


def migrates_once(config: pytest.Config) -> bool:
    """Return whether this process uses a copy: there are several workers, and no option selects another source."""
    has_others = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
    return has_others and not any(config.getvalue(option) for option in OPTIONS)


@pytest.fixture(scope="session")
def django_db_keepdb(
    request: pytest.FixtureRequest, django_db_keepdb: bool, django_db_modify_db_settings: None
) -> Iterator[bool]:
    """Yield whether Django keeps an existing database: the copy, if there is one."""
    if not migrates_once(request.config):
        yield django_db_keepdb
        return
    databases: Databases = request.getfixturevalue("databases")
    name = str(connection.settings_dict["TEST"]["NAME"])
    databases.copy_to(name)
    yield True
    # Django does not drop a database that it keeps.
    connection.close()
    if hasattr(connection, "close_pool"):
        connection.close_pool()
    databases.drop(name)


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


#: Invariants about elapsed time. A test that kills a worker does not have to wait for the next worker.
OF_TIME = {"L4", "O1"}
#: Fixtures that provide a test's database. The check runs before they empty it.
DATABASES = ("stage", "transactional_db", "db")
TESTS = ROOT / "tests"
#: Directories of tests that drive, change, read and delete runs. Other tests create rows directly.
DIRECTORIES = (
    "browser",
    "chaos",
    "live",
    "processes",
    "restore",
    "retention",
    "runs/api",
    "runs/commands",
    "runs/engine",
    "runs/external",
    "runs/flows",
    "runs/pages",
    "runs/providers",
)


def _database_of(request: pytest.FixtureRequest) -> str | None:
    """Return the fixture that provides the database of a test to check, or None."""
    looked_after = any(request.path.is_relative_to(TESTS / name) for name in DIRECTORIES)
    if runs_after_sqlite() and is_of_a_door(request.path):
        return None
    if not looked_after or request.node.get_closest_marker("breaks_invariants") is not None:
        return None
    if request.node.get_closest_marker("django_db") is not None:
        return "db"
    return next((name for name in DATABASES if name in request.fixturenames), None)


@pytest.fixture(autouse=True)
def nothing_is_broken(request: pytest.FixtureRequest) -> Iterator[None]:
    database = _database_of(request)
    if database is None:
        yield
        return
    request.getfixturevalue(database)  # Set up first, so that it is torn down after the check.
    lasting = None if database == "stage" else request.getfixturevalue("lasting_connection")
    yield
    with _statements_planned(lasting):
        _look()


@pytest.fixture(scope="session")
def lasting_connection(django_db_setup: None) -> Iterator[BaseDatabaseWrapper]:
    """Open a second connection to the suite's database, for the whole session. It connects at its first use."""
    lasting = connection.copy()
    yield lasting
    lasting.close()


@contextmanager
def _statements_planned(lasting: BaseDatabaseWrapper | None) -> Iterator[None]:
    """Run the check on the long-lived connection. A worker closes its own, and SQLite then loses its query plans.

    Uncommitted rows are visible only on the test's own connection, so a test in a transaction is checked there.
    """
    if lasting is None or connection.vendor != "sqlite" or connection.in_atomic_block:
        yield
        return
    own = connections[DEFAULT_DB_ALIAS]
    connections[DEFAULT_DB_ALIAS] = lasting
    try:
        yield
    finally:
        connections[DEFAULT_DB_ALIAS] = own


def _look() -> None:
    if not AgentRun.objects.exists() and not FlowRun.objects.exists():
        return
    broken = [violation for violation in check() if violation.invariant not in OF_TIME and not violation.warning_only]
    assert broken == [], "what is stored contradicts itself"
    for flow_run_id in FlowRun.objects.values_list("pk", flat=True):
        assert flow_differences(flow_run_id) == [], f"the log of {flow_run_id} does not tell its snapshot"
    for run_id in AgentRun.objects.values_list("pk", flat=True):
        assert differences(run_id) == [], f"the log of {run_id} does not tell what its rows hold"
