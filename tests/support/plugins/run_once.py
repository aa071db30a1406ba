"""Leaves out of a run on PostgreSQL what the run on SQLite has proven already: tests that ask no database.

A plugin of the suite (tests/conftest.py names it). A test asks a database if one of its fixtures or marks says so.
`make test` runs the suite on SQLite first; a test that is named by itself is never left out.
"""

from __future__ import annotations

import os

import pytest

#: Fixtures and marks by which a test has a database, a broker or processes on them.
FIXTURES = frozenset({"db", "transactional_db", "databases", "process_env", "redis_url"})
MARKS = frozenset({"django_db", "postgres", "redis", "bench", "scale", "chaos", "browser", "every_database"})


def asks_a_database(fixtures: frozenset[str], marks: frozenset[str]) -> bool:
    """Whether what the test comes to may depend on the database or the broker of the run."""
    return bool(fixtures & FIXTURES or marks & MARKS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("AFTER_SQLITE") != "1":
        return
    kept, left = [], []
    for item in items:
        fixtures = frozenset(getattr(item, "fixturenames", ()))
        marks = frozenset(mark.name for mark in item.iter_markers())
        (kept if asks_a_database(fixtures, marks) else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
