"""Play every recording of ../shared with Celery workers: two and a beat on Postgres and Redis, one on SQLite."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pytest_django import Settings

from runs.fixtures import fixture_files
from runs.fixtures.fixture_files import dumps
from runs.fixtures.fixture_messages import canonical
from runs.fixtures.format import Fixture, conversation
from runs.models import AgentRun
from runs.statuses import ToolStatus
from runs.upkeep import invariants, replay_check
from tests.support.databases import OwnRedis
from tests.support.factories import make_agent, make_project, make_run
from tests.support.recordings import NAMES, fixture_of, path_of
from tests.support.session_counts import Counts, of_record, of_session
from tests.support.stage import Stage

WITHIN_S = 240


@pytest.fixture
def recordings(tmp_path: Path, settings: Settings) -> dict[str, Fixture]:
    """Convert all recordings to fixtures in a folder that workers and this process read; return them by name."""
    folder = tmp_path / "fixtures"
    folder.mkdir()
    settings.AGENTOPS_FIXTURES = [str(folder)]
    fixture_files.load_named.cache_clear()
    made = {f"recording-{number}": fixture_of(name) for number, name in enumerate(NAMES)}
    for name, fixture in made.items():
        (folder / f"{name}.json").write_text(dumps(fixture))
    return made


def start(recordings: dict[str, Fixture]) -> dict[str, AgentRun]:
    project = make_project("recordings")
    runs: dict[str, AgentRun] = {}
    for name, fixture in recordings.items():
        first = fixture.answers[0].input
        agent = make_agent(project, slug=name, fixture=name, instructions=first.system or "")
        runs[name] = make_run(agent, first.prompt)
    return runs


def counted(name: str) -> Counts:
    path = path_of(name)
    return of_record(path, int(name.split("#")[1])) if "#" in name else of_session(path)


def finish(stage: Stage, runs: dict[str, AgentRun]) -> float:
    began = time.monotonic()
    for run in runs.values():
        stage.reaches(run, *(["completed"]), within_s=max(WITHIN_S - (time.monotonic() - began), 1))
    return time.monotonic() - began


def compare(recordings: dict[str, Fixture], runs: dict[str, AgentRun]) -> None:
    for number, source in enumerate(NAMES):
        name = f"recording-{number}"
        run, counts = AgentRun.objects.get(pk=runs[name].pk), counted(source)
        stored = [{"role": m.role, "content": canonical(m.content)} for m in run.messages.order_by("position")]
        assert stored == conversation(recordings[name]), source
        calls = list(run.tool_calls.values_list("status", flat=True))
        assert run.step_count == counts.calls, source
        assert len(calls) == counts.tool_calls, source
        assert calls.count(ToolStatus.ERROR) == counts.errors, source
        assert replay_check.differences(run.pk) == [], source
    assert invariants.check() == []


@pytest.mark.redis
def test_two_workers_and_a_beat(
    stage: Stage, own_redis: OwnRedis, recordings: dict[str, Fixture], settings: Settings
) -> None:
    if stage.databases.engine != "postgres":
        pytest.skip("this pass of the suite runs on SQLite: see the test below")
    env = {"AGENTOPS_FIXTURES": settings.AGENTOPS_FIXTURES[0]}
    stage.worker(**env)
    stage.worker(**env)
    stage.beat()
    runs = start(recordings)
    for run in runs.values():
        own_redis.hint(run.pk)
    finish(stage, runs)
    compare(recordings, runs)
    owners = set(AgentRun.objects.values_list("attempts__owner", flat=True))
    assert len(owners) == 2, f"both workers took part, not only {owners}"


def test_one_worker_without_a_broker(stage: Stage, recordings: dict[str, Fixture], settings: Settings) -> None:
    if stage.databases.engine != "sqlite":
        pytest.skip("this pass of the suite runs on Postgres: see the test above")
    stage.worker(AGENTOPS_FIXTURES=settings.AGENTOPS_FIXTURES[0])
    runs = start(recordings)
    finish(stage, runs)
    compare(recordings, runs)
