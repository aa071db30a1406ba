"""Fixtures for tests of web pages and streams: a server in this process, separate servers, and stream clients.

A plugin of the suite (tests/conftest.py names it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from django.contrib.auth.hashers import Argon2PasswordHasher
from pytest_django import Settings

from tests.support.node_packages import install
from tests.support.paths import ROOT
from tests.support.processes.stage import Stage
from tests.support.waiting import eventually
from tests.support.web.receiver import Receiver, receiving
from tests.support.web.server import WebProcess, WebThread, connections_in_use
from tests.support.web.stream_clients import Listeners

MakeWeb = Callable[..., WebProcess]
#: Programs that use third-party clients, and the npm packages of these clients.
CLIENTS = ROOT / "tests/support/web/foreign_clients"


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
    settings.ROOT_URLCONF = "tests.support.components.urls"
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
    return install(CLIENTS)


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
