"""A stored run as a fixture: what plays it has the same conversation, and what differs is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from runs.fixtures import library
from runs.fixtures.fixture_files import dumps, parse
from runs.models import AgentRun
from runs.queries.recording.run_fixture import RunRecording, record
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.imported_runs import import_path

pytestmark = pytest.mark.django_db(transaction=True)
Play = Callable[[RunRecording], AgentRun]

IMPORTED = [
    "atif/login-trace.trajectory.json",
    "claude-agent-sdk/golden-tool-use-roundtrip.json",
    "claude-code/28-a8bc758709-0.jsonl",
    "claude-code/ad-a8171575ce-0.jsonl",
    "claude-code/b6-f735fbac66-0.jsonl",
    "codex/codex-rollout.sample.jsonl",
    "gemini-cli/faff42ab.json",
    "inspect/log_tool_call_error.json",
    "inspect/log_images_tc.json",
    "langfuse-traces/openai-agents-2025-09-30.json",
    "langfuse-traces/pydantic-ai-tools-2025-12-04.json",
    "mini-swe-agent/local.traj.json",
    "mini-swe-agent/django__django-14765.traj.json",
    "openhands/basic_interactions.json",
    "openhands/output.jsonl",
    "swe-agent/3b6961-katy.traj",
    "swe-agent/c9dc26-function_calling_simple.traj",
    "tau-bench/gpt-4o-airline.subset.json",
]


@pytest.fixture
def play(tmp_path: Path, settings: Settings) -> Iterator[Play]:
    """Plays a fixture from its file, as a run of an agent that plays recordings."""
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]
    library.load.cache_clear()
    count = 0

    def played(recording: RunRecording) -> AgentRun:
        nonlocal count
        count += 1
        text = dumps(recording.fixture)
        assert parse(text) == recording.fixture
        (tmp_path / f"recorded-{count}.json").write_text(text)
        start = recording.fixture.answers[0].input
        agent = make_agent(fixture=f"recorded-{count}", instructions=start.system or "")
        return drive(make_run(agent, start.prompt or "none"))

    yield played
    library.load.cache_clear()


@pytest.mark.parametrize("name", IMPORTED)
def test_x(name, play, shared):
    report = import_path(make_project(), shared / "data" / name)
    for run in report.runs[:3]:
        run.refresh_from_db()
        from runs.queries.recording.run_fixture import NothingRecorded

        try:
            r = record(run)
        except NothingRecorded as e:
            print(name, run.status, "NOTHING", e)
            continue
        p = play(r)
        a = transcript(run)
        b = transcript(p)
        print(name, run.status, p.status, p.error_message, len(a), len(b), a == b, r.notes)
        if a != b:
            for x, y in zip(a, b):
                if x != y:
                    print("   ", str(x)[:300])
                    print("   ", str(y)[:300])
                    break


def transcript(run):
    from runs.conversation.transcript import rows_of
    from runs.fixtures.fixture_messages import canonical

    return [(r.role, canonical(r.content)) for r in rows_of(run)]
