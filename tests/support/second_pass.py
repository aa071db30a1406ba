"""The two passes of `make test` and `make processes`: one on SQLite, then one on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tests.support.paths import ROOT

Case = TypeVar("Case")
#: The tests of what people and programs meet: pages, streams, API, admin, commands, projects and their members.
DOORS = ("admin", "client", "deployment", "live", "processes/commands", "processes/deployment", "projects", "runs/api",
         "runs/commands", "runs/external/importers", "runs/external/otlp", "runs/external/watching", "runs/pages",
         "testing", "web")  # fmt: skip


def is_first_pass() -> bool:
    """Whether this is the pass on SQLite."""
    return os.environ.get("TEST_PASS") == "sqlite"


def runs_after_sqlite() -> bool:
    """Whether the whole suite has just run on SQLite."""
    return os.environ.get("TEST_PASS") == "postgres"


def runs_every_test() -> bool:
    """Whether this is a run of every test, as in `make nightly`."""
    return os.environ.get("ALL") == "1"


def is_of_a_door(path: Path) -> bool:
    """Whether the file tests a door, as do those directly in tests/, which go through all doors."""
    tests = ROOT / "tests"
    return path.parent == tests or any(path.is_relative_to(tests / door) for door in DOORS)


def cases(values: Sequence[Case]) -> Sequence[Case]:
    """The cases of a test that goes through them in a loop: after the run on SQLite the first, as of parameters."""
    return values[:1] if runs_after_sqlite() else values
