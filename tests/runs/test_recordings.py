"""Every recording of ../shared plays to its end as a run, and what is stored is what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from runs import invariants
from runs.fixtures import library
from runs.fixtures.format import Fixture, conversation, dumps
from runs.fixtures.messages import canonical
from runs.models import AgentRun
from runs.statuses import ToolStatus
from tests.make import drive, make_agent, make_run
from tests.runs.fixtures.independent_counts import Counts, of_record, of_session
from tests.runs.fixtures.recordings import NAMES, fixture_of, path_of
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
Put = Callable[[Fixture], str]


@pytest.fixture
def put(tmp_path: Path, settings: Settings) -> Iterator[Put]:
    """Puts a fixture where runs find it, and gives its name."""
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]
    library.load.cache_clear()

    def place(fixture: Fixture) -> str:
        (tmp_path / "recording.json").write_text(dumps(fixture))
        return "recording"

    yield place
    library.load.cache_clear()


def play(fixture: Fixture, name: str) -> AgentRun:
    start = fixture.answers[0].input
    agent = make_agent(fixture=name, instructions=start.system or "")
    return drive(make_run(agent, start.prompt))


def counted(name: str) -> Counts:
    path = path_of(name)
    return of_record(path, int(name.split("#")[1])) if "#" in name else of_session(path)


@pytest.mark.parametrize("name", NAMES)
def test_it_plays_to_its_end(name: str, put: Put) -> None:
    fixture = fixture_of(name)
    run = play(fixture, put(fixture))
    assert (run.status, run.error_message) == ("completed", "")
    stored = [{"role": m.role, "content": canonical(m.content)} for m in run.messages.order_by("position")]
    assert stored == conversation(fixture)
    assert invariants.check(run.pk) == []

    counts = counted(name)
    calls = run.tool_calls.all()
    assert run.step_count == counts.calls == run.messages.filter(role="assistant").count()
    assert len(calls) == counts.tool_calls
    assert sum(call.status == ToolStatus.ERROR for call in calls) == counts.errors
    assert sum(call.status == ToolStatus.UNKNOWN for call in calls) == counts.unanswered
    assert run.output_tokens == counts.output_tokens
    # Played at once, nothing was streamed: the text stands in the message rows alone.
    assert not Event.objects.filter(log=run.pk, type__contains=".delta").exists()
