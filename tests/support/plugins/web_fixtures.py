"""Fixtures for tests of what is served: a server in this process, servers of their own, and clients of streams.

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
#: Programs that use other people's clients, and the npm packages of these.
CLIENTS = ROOT / "tests/support/web/foreign_clients"


@pytest.fixture
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's hasher, at a cost for tests."""
    for name, cost in [("time_cost", 1), ("memory_cost", 64), ("parallelism", 1)]:
        monkeypatch.setattr(Argon2PasswordHasher, name, cost)


@pytest.fixture
def receiver(settings: Settings) -> Iterator[Receiver]:
    """A receiver on loopback, which the site may send to."""
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
    """A server on the database of this test. It is stopped before the database is emptied."""
    server = WebThread()
    server.start()
    yield server
    server.stop()
    # Before the tables are emptied, and the database is dropped.
    eventually(lambda: connections_in_use() == 0, within_s=10, why="the server's connections are given back")


@pytest.fixture
def web_process(stage: Stage) -> MakeWeb:
    """Starts servers as processes of their own: `web_process("agentops-web-1", AGENTOPS_STREAMS="3")`."""

    def start(name: str = "agentops-web", settings_module: str = "agentops.settings", **env: str) -> WebProcess:
        return WebProcess(stage, name, env, settings_module).start()

    return start


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """The directory in which npm has installed the clients of the package lock."""
    return install(CLIENTS)


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    listeners = Listeners()
    yield listeners
    listeners.close()


@pytest.fixture
def connections_of(stage: Stage) -> Iterator[Callable[[WebProcess], list[str]]]:
    """The states of a web process's database connections; asked on a connection that is not counted among them."""
    if stage.databases.engine != "postgres":
        yield lambda process: []
        return
    with psycopg.connect(stage.databases.server_url(), autocommit=True, connect_timeout=5) as server:
        yield lambda process: process.connections(server)
