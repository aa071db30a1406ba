"""Fixtures for tests with workers, separate processes, web pages and streams.

A plugin of the suite (tests/conftest.py names it). Before every test it resets redaction: no project has rules, no
rules are in scope, no look-up runs until a rule is added, and the site's secrets are read again. Other processes look
up rules as usual.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.hashers import Argon2PasswordHasher
from pytest_django import Settings

from agentops.accounts.redaction_cache import CACHE
from agentops.base.redaction import project_scope, redact
from runs.lifecycle import wake
from runs.worker.worker import Worker
from tests.support.child_processes import ForkServer
from tests.support.databases import Databases, OwnRedis, looking_at
from tests.support.deployment import build_client_wheel, build_wheel
from tests.support.loopback_servers import MockModelServer, Receiver, receiving
from tests.support.machine import ROOT, install_node_packages, made_once
from tests.support.stage import Stage
from tests.support.stream_clients import Listeners
from tests.support.timing import eventually
from tests.support.web_server import WebProcess, WebThread, connections_in_use


@pytest.fixture
def quick_retries(settings: Settings, no_hints: None) -> None:
    """Shorten the waits before retries, and send no hints to other processes."""
    settings.AGENTOPS_RETRY_BASE_DELAY_MS = 20


@pytest.fixture
def worker(transactional_db: None) -> Iterator[Worker]:
    """Yield a worker in this process, on the database of this test."""
    worker = Worker()
    yield worker
    worker.close(5)


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
    """Return the wheel of this tree's site, built once per session for all processes."""
    return next(made_once(tmp_path_factory, "wheel", build_wheel).glob("*.whl"))


@pytest.fixture(scope="session")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this tree's client, built once per session for all processes."""
    return next(made_once(tmp_path_factory, "client-wheel", build_client_wheel).glob("*.whl"))


@pytest.fixture(scope="session")
def mock_model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockModelServer]:
    """Yield a third-party model server, one per process of the suite."""
    server = MockModelServer(tmp_path_factory.mktemp("mock-model-server"))
    yield server
    server.close()


MakeWeb = Callable[..., WebProcess]
#: Programs in JavaScript that use third-party clients, and the npm packages of these clients.
CLIENTS = ROOT / "tests/support/node/foreign_clients"
#: Clients with third-party libraries in Python.
PYTHON_CLIENTS = ROOT / "tests/support/programs/foreign_clients.py"


@pytest.fixture
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the product's password hasher at a low cost."""
    for name, cost in [("time_cost", 1), ("memory_cost", 64), ("parallelism", 1)]:
        monkeypatch.setattr(Argon2PasswordHasher, name, cost)


@pytest.fixture
def receiver(settings: Settings) -> Iterator[Receiver]:
    """Yield a receiver on loopback. The site may send to it."""
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def components(settings: Settings) -> None:
    """The page of components."""
    settings.ROOT_URLCONF = "tests.support.component_page"
    [engine] = settings.TEMPLATES
    settings.TEMPLATES = [engine | {"DIRS": [*engine["DIRS"], ROOT / "tests/support/components/templates"]}]


@pytest.fixture
def web(transactional_db: None, no_hints: None) -> Iterator[WebThread]:
    """Yield a server on the database of this test. It stops before the database is emptied."""
    server = WebThread()
    server.start()
    yield server
    server.stop()
    # Wait before the tables are emptied and the database is dropped.
    eventually(lambda: connections_in_use() == 0, within_s=10, why="the server's connections are given back")


@pytest.fixture
def web_process(stage: Stage) -> MakeWeb:
    """Return a function that starts servers as processes: `web_process("agentops-web-1", AGENTOPS_STREAMS="3")`."""

    def start(name: str = "agentops-web", settings_module: str = "agentops.settings", **env: str) -> WebProcess:
        return WebProcess(stage, name, env, settings_module).start()

    return start


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """Return the directory in which npm has installed the clients of the package lock."""
    return install_node_packages(CLIENTS)


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    listeners = Listeners()
    yield listeners
    listeners.close()


@pytest.fixture
def connections_of(stage: Stage) -> Iterator[Callable[[WebProcess], list[str]]]:
    """Yield a function that returns the states of a web process's database connections, read on another connection."""
    if stage.databases.engine != "postgres":
        yield lambda process: []
        return
    with psycopg.connect(stage.databases.server_url(), autocommit=True, connect_timeout=5) as server:
        yield lambda process: process.connections(server)


@pytest.fixture(autouse=True)
def no_redaction_rules() -> None:
    CACHE.assume_none()
    redact.site_secrets.cache_clear()
    project_scope.clear()
