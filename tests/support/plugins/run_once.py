"""Leaves out of a run on PostgreSQL what the run on SQLite has proven already.

A plugin of the suite (tests/conftest.py names it). `make test` runs the suite on SQLite first; a test that is named by
itself is never left out. Of the others, two kinds are:

- those that ask no database: none of their fixtures and marks does;
- of a page, an API view, an admin page or a command, all cases of a parametrized test but the first. They differ in
  what is asked and answered; the statements that they send are those of the first case. A test whose cases send
  different statements is marked `every_database`. The first case runs with `make test ALL=1`, as in the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests.support.second_pass import is_of_a_door, runs_after_sqlite, runs_every_test

#: Fixtures and marks by which a test has a database, a broker or processes on them.
FIXTURES = frozenset({"django_db_setup", "db", "transactional_db", "databases", "process_env", "redis_url"})
MARKS = frozenset({"django_db", "postgres", "redis", "bench", "scale", "chaos", "browser", "every_database"})
#: A case for each database, of which every run skips the other's.
PER_DATABASE = "engine"


def asks_a_database(fixtures: frozenset[str], marks: frozenset[str]) -> bool:
    """Whether what the test comes to may depend on the database or the broker of the run."""
    return bool(fixtures & FIXTURES or marks & MARKS)


def without_tests_of_doors(items: Iterable[pytest.Item], *, first_cases: bool) -> Iterator[pytest.Item]:
    """All but the tests of doors. With `first_cases`, the first case of each of them is kept."""
    tests_met = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        runs_anyway = PER_DATABASE in getattr(item, "fixturenames", ()) or any(
            item.get_closest_marker(mark) for mark in MARKS - {"django_db"}
        )
        is_first = not hasattr(item, "callspec") or test not in tests_met
        if runs_anyway or not is_of_a_door(item.path) or (first_cases and is_first):
            yield item
        tests_met.add(test)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not runs_after_sqlite():
        return
    asking = []
    for item in items:
        fixtures = frozenset(getattr(item, "fixturenames", ()))
        marks = frozenset(mark.name for mark in item.iter_markers())
        if asks_a_database(fixtures, marks):
            asking.append(item)
    kept = list(without_tests_of_doors(asking, first_cases=runs_every_test()))
    left = set(items) - set(kept)
    items[:] = kept
    config.hook.pytest_deselected(items=list(left))
