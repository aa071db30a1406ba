"""A place for schedules, on the database of this pass of the suite. `make chaos` plays many more, in players."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from tests.chaos import model
from tests.chaos.place import Place
from tests.crash.rig import Databases, Nursery, OwnRedis

assert model.ChaosProvider is not None


@pytest.fixture
def place(
    *,
    engine: str,
    nursery: Nursery,
    databases: Databases,
    tmp_path: Path,
    django_db_blocker: Any,
    no_hints: None,
    settings: Settings,
) -> Iterator[Place]:
    settings.REDIS_URL = ""  # a schedule puts its own broker there; this puts back what was
    with django_db_blocker.unblock():
        yield Place(engine, tmp_path, nursery, databases, OwnRedis(tmp_path))
