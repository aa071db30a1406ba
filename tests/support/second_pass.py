"""The two passes of `make test` and `make processes`: one on SQLite, then one on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tests.support.paths import ROOT

Case = TypeVar("Case")
#: The tests of what people and programs meet: pages, streams, API, admin, commands, projects and their members; and of
#: the programs that are called: sessions of coding agents, models of providers.
DOORS = ("admin", "client", "deployment", "live", "processes/commands", "processes/deployment", "projects", "runs/api",
         "runs/commands", "runs/engine/sessions", "runs/external/importers", "runs/external/otlp",
         "runs/external/watching", "runs/pages", "runs/providers", "testing", "web")  # fmt: skip
#: What a run does, by rows that tests of the log, of transitions and of the engine itself write on both databases.
ON_POSTGRES = ("runs/alerts", "runs/engine/approvals", "runs/engine/control", "runs/engine/policy", "runs/engine/turns",
               "runs/telemetry")  # fmt: skip


def is_first_pass() -> bool:
    """Whether this is the pass on SQLite, and one on PostgreSQL follows."""
    return os.environ.get("TEST_PASS") == "sqlite"


def runs_after_sqlite() -> bool:
    """Whether the whole suite has just run on SQLite."""
    return os.environ.get("TEST_PASS") == "postgres"


def runs_every_test() -> bool:
    """Whether this is a run of every test, as in `make nightly`."""
    return os.environ.get("ALL") == "1"


def is_of_a_door(path: Path) -> bool:
    """Whether the file tests a door, as do those directly in tests/, which go through all doors."""
    return path.parent == ROOT / "tests" or _is_in(DOORS, path)


def is_left_to_postgres(path: Path) -> bool:
    """Whether the first of two passes leaves the file's tests with a database to the second."""
    return _is_in(ON_POSTGRES, path)


def _is_in(directories: tuple[str, ...], path: Path) -> bool:
    return any(path.is_relative_to(ROOT / "tests" / each) for each in directories)


def cases(values: Sequence[Case]) -> Sequence[Case]:
    """The cases of a test that goes through them in a loop: after the run on SQLite the first, as of parameters."""
    return values[:1] if runs_after_sqlite() else values
