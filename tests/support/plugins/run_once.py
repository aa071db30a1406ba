"""Leaves out of a run on PostgreSQL what the run on SQLite has proven already.

A plugin of the suite (tests/conftest.py names it). `make test` runs the suite on SQLite first; a test that is named by
itself is never left out. Two kinds of tests are:

- those that ask no database: none of their fixtures and marks does;
- of a page, an API view, an admin page or a command, all cases of a parametrized test but the first. They differ in
  what is asked and answered; the statements that they send are those of the first case. A test whose cases send
  different statements is marked `every_database`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests.support.second_pass import is_of_a_door, runs_after_sqlite

#: Fixtures and marks by which a test has a database, a broker or processes on them.
FIXTURES = frozenset({"django_db_setup", "db", "transactional_db", "databases", "process_env", "redis_url"})
MARKS = frozenset({"django_db", "postgres", "redis", "bench", "scale", "chaos", "browser", "every_database"})
#: A case for each database, of which every run skips the other's.
PER_DATABASE = "engine"


def asks_a_database(fixtures: frozenset[str], marks: frozenset[str]) -> bool:
    """Whether what the test comes to may depend on the database or the broker of the run."""
    return bool(fixtures & FIXTURES or marks & MARKS)


def without_further_cases(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """All but the further cases of parametrized tests of doors."""
    tests_met = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        has_cases = hasattr(item, "callspec") and PER_DATABASE not in getattr(item, "fixturenames", ())
        has_own_mark = any(item.get_closest_marker(mark) for mark in MARKS - {"django_db"})
        if has_own_mark or not (has_cases and is_of_a_door(item.path) and test in tests_met):
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
    kept = list(without_further_cases(asking))
    left = set(items) - set(kept)
    items[:] = kept
    config.hook.pytest_deselected(items=list(left))
