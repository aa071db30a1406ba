"""After every test that wrote runs: do they still keep all invariants, and does each log still tell what its rows hold?

A plugin of the suite (tests/conftest.py names it). A test that spoils rows on purpose, or makes rows that no run of
ours would have, says so: `@pytest.mark.breaks_invariants("why")`. On PostgreSQL, a run of the suite that follows one on
SQLite does not check again after tests of pages, the API and commands.
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

#: They speak of the time that passed: a test that lets a worker die need not wait for the next one.
OF_TIME = {"L4", "O1"}
#: Fixtures that give a test its database; the check comes before it is emptied.
DATABASES = ("stage", "transactional_db", "db")
TESTS = ROOT / "tests"
#: Where runs are driven, steered, read and removed; elsewhere rows are made by hand.
DIRECTORIES = ("browser", "chaos", "live", "processes", "restore", "retention", "runs/api", "runs/commands",
               "runs/engine", "runs/external", "runs/flows", "runs/pages", "runs/providers")  # fmt: skip


def _database_of(request: pytest.FixtureRequest) -> str | None:
    """The fixture by which a test that is looked after has its database."""
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
    request.getfixturevalue(database)  # now, so that it is there until this has looked
    lasting = None if database == "stage" else request.getfixturevalue("lasting_connection")
    yield
    with _statements_planned(lasting):
        _look()


@pytest.fixture(scope="session")
def lasting_connection(django_db_setup: None) -> Iterator[BaseDatabaseWrapper]:
    """A second connection to the database of the suite, which lasts as long as that. It opens when it is used."""
    lasting = connection.copy()
    yield lasting
    lasting.close()


@contextmanager
def _statements_planned(lasting: BaseDatabaseWrapper | None) -> Iterator[None]:
    """Look on the connection that has looked before: a worker closes its own, and with it SQLite forgets its plans.

    What a test has not committed is seen on its own connection alone.
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
