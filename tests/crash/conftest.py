"""Fixtures of the crash tests. They start real workers on databases of their own: see rig.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from runs import wake
from runs.engine.worker import Worker
from runs.statuses import RunStatus
from tests.crash import rig, scripted

assert scripted.ScriptedProvider is not None


def engine_under_test() -> str:
    return "sqlite" if settings.DATABASES["default"]["ENGINE"].endswith("sqlite3") else "postgres"


@pytest.fixture(scope="session")
def nursery() -> Iterator[rig.Nursery]:
    nursery = rig.Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Databases]:
    databases = rig.Databases(engine_under_test(), tmp_path_factory.mktemp("crash-databases"))
    yield databases
    databases.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def engine(request: pytest.FixtureRequest) -> str:
    """Both databases; each pass of the suite has the one that it runs on."""
    if request.param != engine_under_test():
        pytest.skip(f"this pass of the suite runs on {engine_under_test()}")
    return str(request.param)


@pytest.fixture(autouse=True)
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's Celery knows of another broker, if any: a test that wants hints sends them by itself."""
    monkeypatch.setattr(wake, "_send", lambda run_id: None)


@pytest.fixture
def stage(
    engine: str, nursery: rig.Nursery, databases: rig.Databases, tmp_path: Path, django_db_blocker: Any
) -> Iterator[rig.Stage]:
    """A fresh database that this process looks at too. On Postgres a broker comes along, on SQLite none."""
    with ExitStack() as stack:
        name = stack.enter_context(databases.fresh())
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(rig.looking_at(name))
        stage = rig.Stage(nursery, databases, name, tmp_path)
        stack.callback(stage.close)
        yield stage


@pytest.fixture
def own_redis(stage: rig.Stage, tmp_path: Path) -> Iterator[rig.OwnRedis]:
    server = rig.OwnRedis(tmp_path)
    server.start()
    stage.redis = server
    yield server
    stage.close()
    server.kill()


Undisturbed = Callable[..., Any]


@pytest.fixture(scope="session")
def transcripts() -> dict[str, Any]:
    return {}


@pytest.fixture
def undisturbed(stage: rig.Stage, transcripts: dict[str, Any]) -> Undisturbed:
    """What a script comes to when nothing happens: `undisturbed(calls, **script)`, before any worker is started."""

    def play(calls: Any = rig.CALLS, **script: Any) -> Any:
        key = json.dumps([calls, script])
        if key not in transcripts:
            assert not stage.workers
            run = stage.run(calls, **script | {"ledger": str(stage.home / "undisturbed")})
            worker = Worker(concurrency=1)
            try:
                assert worker.drive(run.pk)
            finally:
                worker.close(5)
            transcripts[key] = rig.transcript(run)
            assert transcripts[key]["run"][0] == RunStatus.COMPLETED
        return transcripts[key]

    return play
