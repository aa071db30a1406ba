"""After every test that wrote runs, checks that they keep all invariants and that each log agrees with its rows.

A plugin of the suite (tests/conftest.py names it). A test that corrupts rows deliberately, or creates rows that the
product never would, is marked `@pytest.mark.breaks_invariants("why")`. On PostgreSQL, a pass of the suite that follows
one on SQLite does not repeat the check after tests of pages, the API and commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from runs.models import AgentRun, FlowRun
from runs.upkeep.invariants import check
from runs.upkeep.replay_check import differences, flow_differences
from tests.support.paths import ROOT
from tests.support.second_pass import is_of_a_door, runs_after_sqlite

#: Invariants about elapsed time. A test that kills a worker does not have to wait for the next worker.
OF_TIME = {"L4", "O1"}
#: Fixtures that provide a test's database. The check runs before they empty it.
DATABASES = ("stage", "transactional_db", "db")
TESTS = ROOT / "tests"
#: Directories of tests that drive, change, read and delete runs. Other tests create rows directly.
DIRECTORIES = ("browser", "chaos", "live", "processes", "restore", "retention", "runs/api", "runs/commands",
               "runs/engine", "runs/external", "runs/flows", "runs/pages", "runs/providers")  # fmt: skip


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
