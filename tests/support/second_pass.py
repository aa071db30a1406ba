"""The two passes of `make test` and `make processes`: one on SQLite, then one on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tests.support.paths import ROOT

Case = TypeVar("Case")
#: Directories of tests for the entry points: pages, streams, API, admin, commands, projects and their members; and for
#: called programs: sessions of coding agents, model providers.
DOORS = ("admin", "client", "deployment", "live", "processes/commands", "processes/deployment", "projects", "runs/api",
         "runs/commands", "runs/engine/sessions", "runs/external/importers", "runs/external/otlp",
         "runs/external/watching", "runs/pages", "runs/providers", "testing", "web")  # fmt: skip
#: Directories of tests for how runs execute. Tests of the log, of transitions and of the engine write the same kinds of
#: rows on both databases.
ON_POSTGRES = ("runs/alerts", "runs/engine/approvals", "runs/engine/control", "runs/engine/policy", "runs/engine/turns",
               "runs/telemetry")  # fmt: skip


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
