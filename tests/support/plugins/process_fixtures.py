"""Fixtures for tests with separate processes: workers, web processes, and a database for each test.

A plugin of the suite (tests/conftest.py names it).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from runs.lifecycle import wake
from tests.support.deployment.clean_environment import build_wheel
from tests.support.deployment.made_once import made_once
from tests.support.processes.child_processes import ForkServer
from tests.support.processes.databases import Databases, looking_at
from tests.support.processes.redis_server import OwnRedis
from tests.support.processes.stage import Stage
from tests.support.providers.mock_model_server import MockModelServer


def engine_under_test() -> str:
    return "sqlite" if settings.DATABASES["default"]["ENGINE"].endswith("sqlite3") else "postgres"


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    fork_server = ForkServer()
    yield fork_server
    fork_server.close()


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    own = tmp_path_factory.mktemp("stage-databases")
    # With pytest-xdist, all workers share the parent of their directories.
    shared = tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else own
    databases = Databases(engine_under_test(), own, shared=shared)
    yield databases
    databases.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def engine(request: pytest.FixtureRequest) -> str:
    """Parametrise a test with both engines. Each pass of the suite skips the engine that it does not use."""
    if request.param != engine_under_test():
        pytest.skip(f"this pass of the suite runs on {engine_under_test()}")
    return str(request.param)


@pytest.fixture
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable hints from this process, because its Celery may use another broker. Tests that need hints send them."""
    monkeypatch.setattr(wake, "send", lambda run, **_: True)


@pytest.fixture
def stage(
    *,
    engine: str,
    fork_server: ForkServer,
    databases: Databases,
    tmp_path: Path,
    django_db_blocker: Any,
    no_hints: None,
) -> Iterator[Stage]:
    """Yield a fresh database that this process uses too. There is a broker on PostgreSQL, and none on SQLite."""
    with ExitStack() as stack:
        name = stack.enter_context(databases.fresh())
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(looking_at(name))
        stage = Stage(fork_server, databases, name, tmp_path)
        stack.callback(stage.close)
        yield stage


@pytest.fixture
def own_redis(stage: Stage, tmp_path: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(tmp_path)
    server.start()
    stage.redis = server
    yield server
    stage.close()
    server.kill()


@pytest.fixture
def shared_redis(own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch) -> OwnRedis:
    """Make this process use the Redis of the stage. A test may kill it."""
    monkeypatch.setattr(settings, "REDIS_URL", own_redis.url)
    return own_redis


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this tree, built once per session for all processes."""
    return next(made_once(tmp_path_factory, "wheel", build_wheel).glob("*.whl"))


@pytest.fixture(scope="session")
def mock_model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockModelServer]:
    """Yield a third-party model server, one per process of the suite."""
    server = MockModelServer(tmp_path_factory.mktemp("mock-model-server"))
    yield server
    server.close()
