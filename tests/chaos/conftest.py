"""Fixtures for playing schedules on the database of this test pass. `make chaos` plays many more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import Settings

from tests.chaos.environment import deterministic_model
from tests.chaos.environment.player_environment import PlayerEnvironment
from tests.support.child_processes import ForkServer
from tests.support.databases import Databases, OwnRedis

assert deterministic_model.ChaosProvider is not None


@pytest.fixture(scope="session")
def player_environment(
    fork_server: ForkServer, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> PlayerEnvironment:
    """Return the player's environment. It is session-scoped because it caches the undisturbed results of programs."""
    directory = tmp_path_factory.mktemp("schedules")
    return PlayerEnvironment(databases.engine, directory, fork_server, databases, OwnRedis(directory))


@pytest.fixture
def environment(
    *,
    engine: str,
    player_environment: PlayerEnvironment,
    django_db_blocker: Any,
    no_hints: None,
    settings: Settings,
) -> Iterator[PlayerEnvironment]:
    settings.REDIS_URL = ""  # a schedule sets its own broker; the fixture restores the setting
    with django_db_blocker.unblock():
        yield player_environment
