"""The two passes of `make test` and `make processes`: one on SQLite, then one on PostgreSQL.

A plugin of the suite (tests/conftest.py names it), which deselects the tests that the other pass covers. A plain pytest
command runs all tests. The pass on PostgreSQL leaves out

- tests without a database: none of their fixtures and marks needs one;
- tests of a page, an API view, an admin page or a command. With `ALL=1`, as in `make nightly`, the first case of each
  runs: further cases have other inputs and responses, but send the same statements. A test whose cases send different
  statements is marked `every_database`.

The pass on SQLite leaves out

- crash tests, which have a case for each database, unless they are marked `every_database`: a site on SQLite has one
  process;
- tests of how runs execute (`ON_POSTGRES`), with the same exception. With `ALL=1`, or without PostgreSQL, they run on
  SQLite too.

Also reports at the end of a run how many tests were skipped because ../shared is missing, as in every clone, and fails
a module that cannot be collected without the directory.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support import machine
from tests.support.machine import NO_SHARED, ROOT

Case = TypeVar("Case")
#: Directories of tests for the entry points: pages, streams, API, admin, commands, projects and their members; and for
#: called programs: sessions of coding agents, model providers.
DOORS = (
    "admin",
    "client",
    "deployment",
    "durable",
    "live",
    "processes/commands",
    "processes/deployment",
    "projects",
    "runs/api",
    "runs/commands",
    "runs/engine/sessions",
    "runs/external/importers",
    "runs/external/otlp",
    "runs/external/watching",
    "runs/pages",
    "runs/providers",
    "testing",
    "web",
)
#: Directories of tests for how runs execute. Tests of the log, of transitions and of the engine write the same kinds of
#: rows on both databases.
ON_POSTGRES = (
    "runs/alerts",
    "runs/engine/approvals",
    "runs/engine/control",
    "runs/engine/policy",
    "runs/engine/turns",
    "runs/telemetry",
)


def is_first_pass() -> bool:
    """Return whether this is the pass on SQLite, with a pass on PostgreSQL to follow."""
    return os.environ.get("TEST_PASS") == "sqlite"


def runs_after_sqlite() -> bool:
    """Return whether the whole suite has just run on SQLite."""
    return os.environ.get("TEST_PASS") == "postgres"


def runs_every_test() -> bool:
    """Return whether this run includes every test, as in `make nightly`."""
    return os.environ.get("ALL") == "1"


def is_of_a_door(path: Path) -> bool:
    """Return whether the file tests an entry point. Files directly in tests/ cover all entry points."""
    return path.parent == ROOT / "tests" or _is_in(DOORS, path)


def is_left_to_postgres(path: Path) -> bool:
    """Return whether the first pass leaves the file's tests with a database to the second."""
    return _is_in(ON_POSTGRES, path)


def _is_in(directories: tuple[str, ...], path: Path) -> bool:
    return any(path.is_relative_to(ROOT / "tests" / each) for each in directories)


def cases(values: Sequence[Case]) -> Sequence[Case]:
    """Return the cases for a test's loop. After the pass on SQLite, return only the first, as for parameters."""
    return values[:1] if runs_after_sqlite() else values


#: Fixtures and marks of tests with a database, a broker, or processes that use them.
FIXTURES = frozenset({"django_db_setup", "db", "transactional_db", "databases", "process_env", "redis_url"})
MARKS = frozenset({"django_db", "postgres", "redis", "bench", "scale", "chaos", "browser", "every_database"})
#: The fixture of tests with a case for each database. Every pass skips the other database's case.
PER_DATABASE = "engine"


def asks_a_database(fixtures: frozenset[str], marks: frozenset[str]) -> bool:
    """Return whether the result of a test may depend on the database or the broker."""
    return bool(fixtures & FIXTURES or marks & MARKS)


def without_tests_of_doors(items: Iterable[pytest.Item], *, first_cases: bool) -> Iterator[pytest.Item]:
    """Yield all tests except tests of pages, API views and commands. With `first_cases`, keep their first cases."""
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


def without_crash_tests(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield all tests without a case for each database. Of tests marked `every_database`, yield the SQLite cases."""
    for item in items:
        is_case_of_sqlite = item.get_closest_marker("every_database") and not item.get_closest_marker("postgres")
        if is_case_of_sqlite or PER_DATABASE not in getattr(item, "fixturenames", ()):
            yield item


def without_what_postgres_proves(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield all tests except database tests that also run on PostgreSQL. Keep tests marked `every_database`."""
    for item in items:
        fixtures, marks = fixtures_and_marks(item)
        if "every_database" in marks or not is_left_to_postgres(item.path) or not asks_a_database(fixtures, marks):
            yield item


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_first_pass():
        kept: Iterable[pytest.Item] = without_crash_tests(items)
        keep_only(config, items, list(kept if runs_every_test() else without_what_postgres_proves(kept)))
    elif runs_after_sqlite():
        asking = [item for item in items if asks_a_database(*fixtures_and_marks(item))]
        keep_only(config, items, list(without_tests_of_doors(asking, first_cases=runs_every_test())))


def fixtures_and_marks(item: pytest.Item) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the test's fixtures and marks."""
    return frozenset(getattr(item, "fixturenames", ())), frozenset(mark.name for mark in item.iter_markers())


def keep_only(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    """Deselect all items that are not in `kept`."""
    left = set(items) - set(kept)
    items[:] = kept
    config.hook.pytest_deselected(items=list(left))


def left_out(reasons: Iterable[str]) -> str:
    """Return one sentence on the tests that were skipped without ../shared. Empty without such tests."""
    count = sum(NO_SHARED in reason for reason in reasons)
    return f"Left out: {count} tests, each of which {NO_SHARED}; all others do without." if count else ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    machine.is_collecting = True
    try:
        return (yield)
    finally:
        machine.is_collecting = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    if sentence := left_out(str(report.longrepr) for report in skipped):
        terminalreporter.write_line(sentence, yellow=True)
