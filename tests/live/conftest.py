"""Fixtures for stream tests: a run, a user who may read it, and a server that streams it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runs.worker.worker import Worker
from tests.support.clients import FrontEnd
from tests.support.engine import saying
from tests.support.factories import make_agent, make_project, with_key
from tests.support.scripted_model import PLAYS, Move
from tests.support.stream_clients import Listeners
from tests.support.timelines import StreamedRun
from tests.support.web_server import WebThread


@pytest.fixture
def streamed(web: WebThread, listeners: Listeners) -> StreamedRun:
    """A run streamed by a server in this process."""
    return StreamedRun(web, listeners)


_numbers = itertools.count(1)


@pytest.fixture
def plays() -> Iterator[Callable[..., str]]:
    mine: list[str] = []

    def add(*turns: list[Move]) -> str:
        mine.append(f"ag-ui-{next(_numbers)}")
        PLAYS[mine[-1]] = saying(*turns)
        return mine[-1]

    yield add
    for name in mine:
        del PLAYS[name]


@pytest.fixture
def front_end(web: WebThread, worker: Worker, plays: Callable[..., str], tmp_path: Any) -> Callable[..., FrontEnd]:
    def make(*turns: list[Move], **fields: Any) -> FrontEnd:
        project = make_project()
        settings = {"play": plays(*turns), "ledger": str(tmp_path / "ledger")}
        agent = make_agent(
            project,
            provider="scripted",
            model="scripted-model",
            settings=settings,
            **{"tools": ["ledger_read", "ask_user"], "max_steps": 50} | fields,
        )
        return FrontEnd(web, agent, worker, with_key(project, "read", "write"))

    return make
