"""A stored run as a fixture: playing it gives the same conversation, and differences are reported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from runs.actions.fork import fork
from runs.actions.resume import resume
from runs.conversation import transcript
from runs.external.ingest import Sender
from runs.external.ingest import record as ingest
from runs.fixtures import fixture_files
from runs.fixtures.fixture_files import dumps, parse
from runs.fixtures.fixture_messages import canonical
from runs.fixtures.format import ContentEvent
from runs.models import AgentRun
from runs.queries.run_fixture import NothingRecorded, RunRecording, record
from tests.support import remote_samples
from tests.support.factories import drive, make_agent, make_awaiting_approval, make_project, make_run
from tests.support.recordings import import_path
from tests.support.recordings import recording as recorded_file
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)
Play = Callable[[RunRecording], AgentRun]
LIVE = "the run is waiting: only what it has done so far is recorded"
REPEATED = "7 repeated tool calls at which the repeat guard warns or stops a run that plays the fixture"
UNKNOWN = (
    "1 tool call without a known result: a run that plays it waits for a person, unless on_unknown_tool is tell_model"
)

#: A file of each format that plays back to the same conversation, and the notes of its fixtures.
IMPORTED = {
    "atif/login-trace.trajectory.json": [],
    "claude-agent-sdk/golden-tool-use-roundtrip.json": [],
    "claude-code/28-a8bc758709-0.jsonl": [LIVE],
    "codex/codex-rollout.sample.jsonl": [LIVE],
    "gemini-cli/faff42ab.json": [LIVE],
    "inspect/log_images_tc.json": [],
    "langfuse-traces/openai-agents-2025-09-30.json": [],
    "mini-swe-agent/local.traj.json": [],
    "openhands/basic_interactions.json": [],
    "swe-agent/c9dc26-function_calling_simple.traj": [],
}
#: Files that do not, the reason, and the number of missing messages.
CHANGED = {
    "claude-code/ad-a8171575ce-0.jsonl": ("1 tool result moved: results are played in the order of their calls", 0),
    "inspect/log_tool_call_error.json": (f"{REPEATED}; the conversation starts without a user message", 8),
    "langfuse-traces/pydantic-ai-tools-2025-12-04.json": (
        f"1 system message left out: only the first is played; {UNKNOWN}",
        1,
    ),
}


@pytest.fixture
def play(tmp_path: Path, settings: Settings) -> Iterator[Play]:
    """Return a function that plays a fixture from its file, as a run of an agent with the fixture provider."""
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]
    fixture_files.load_named.cache_clear()

    def played(recording: RunRecording, **options: Any) -> AgentRun:
        text = dumps(recording.fixture)
        assert parse(text) == recording.fixture
        (tmp_path / "recorded.json").write_text(text)
        fixture_files.load_named.cache_clear()
        start = recording.fixture.answers[0].input
        agent = make_agent(fixture="recorded", instructions=start.system or "", **options)
        return drive(make_run(agent, start.prompt or "Go."))

    yield played
    fixture_files.load_named.cache_clear()


def test_the_steps_of_a_remote_run_are_played_as_calls_of_a_model(play: Play) -> None:
    program = Program(make_project())
    program.start_run()
    remote_samples.complete(program)
    recording = record(program.run)

    assert "4 steps without a model played as a tool call of a model" in recording.notes
    played = play(recording)
    assert played.status == "completed"
    assert conversation_of(played) == conversation_of(program.run)


def conversation_of(run: AgentRun) -> list[str]:
    return [f"{row.role} {canonical(row.content)}" for row in transcript.rows_of(run)]


@pytest.mark.parametrize("name", IMPORTED)
def test_an_imported_run_plays_back_to_the_same_conversation(name: str, play: Play) -> None:
    report = import_path(make_project(), recorded_file(name))
    assert report.runs
    for run in report.runs:
        run.refresh_from_db()
        recording = record(run)

        played = play(recording)

        assert (played.status, conversation_of(played)) == ("completed", conversation_of(run))
        assert recording.notes == IMPORTED[name]


@pytest.mark.parametrize("name", CHANGED)
def test_unsupported_content_is_reported(name: str, play: Play) -> None:
    why, missing = CHANGED[name]
    run = AgentRun.objects.get(pk=import_path(make_project(), recorded_file(name)).runs[-1].pk)
    recording = record(run)

    played = play(recording)

    assert recording.fixture.about is not None
    assert recording.fixture.about.notes == "; ".join(recording.notes) == why
    before, after = Counter(conversation_of(run)), Counter(conversation_of(played))
    assert (before - after).total() == missing
    assert before != after or conversation_of(run) != conversation_of(played)


@pytest.mark.slow
def test_a_native_run_with_its_resumes_plays_back(play: Play) -> None:
    """A paused run that was resumed: the whole conversation of the lineage."""
    first = drive(make_run(make_agent(max_steps=2, settings={"pace": 120})))
    run = drive(resume(first.pk, by="test", max_steps=50).run)
    recording = record(run)

    played = play(recording)

    assert (first.status, run.status, played.status) == ("paused", "completed", "completed")
    assert conversation_of(played) == conversation_of(run)
    assert recording.notes == []
    calls, original = recording.fixture.answers, fixture_files.load_named("claude-code-5c").answers
    assert [call.user for call in calls] == [None, "continue", None, None, None]
    assert [call.output.usage for call in calls] == [call.output.usage for call in original]
    assert all(call.output.duration_ms for call in calls)


def test_a_streamed_answer_keeps_its_pace(play: Play, tmp_path: Path) -> None:
    """Ten words within a second: the fixture contains them in parts, each with its time."""
    words = [f"word{number} " for number in range(10)]
    events = [{"type": "text", "content": word, "atMs": 100 * number} for number, word in enumerate(words)]
    output = {"text": "".join(words), "usage": {}, "durationMs": 1000}
    calls = [{"input": {"prompt": "any"}, "output": output, "events": events}]
    (tmp_path / "words.json").write_text(json.dumps({"calls": calls}))
    run = drive(make_run(make_agent(fixture="words", settings={"pace": 1})))

    recording = record(run)

    (call,) = recording.fixture.answers
    pieces = [one for one in call.events if isinstance(one, ContentEvent)]
    assert "".join(one.content for one in pieces) == "".join(words)
    assert 1 < len(pieces) <= len(words)
    times = [one.at_ms for one in pieces]
    assert times == sorted(times)
    assert times[-1] - times[0] > 100
    assert conversation_of(play(recording)) == conversation_of(run)


def test_a_fork_and_a_denied_call(play: Play) -> None:
    denied = drive(make_run(make_agent(policies={"approvals": [{"tools": ".*", "action": "deny", "reason": "No."}]})))
    run = drive(fork(denied.pk, step=2, by="test", message="And now?"))

    recording = record(run)

    count = sum("outcome': 'denied'" in one for one in conversation_of(run))
    assert count
    assert f"{count} denied tool call" in recording.notes[0]
    assert recording.notes[0].endswith("played as failed")
    expected = [one.replace("outcome': 'denied'", "outcome': 'failed'") for one in conversation_of(run)]
    assert conversation_of(play(recording)) == expected


def test_an_external_run_with_streamed_text(play: Play) -> None:
    project = make_project()
    events: list[tuple[str, dict[str, Any]]] = [
        ("run.started", {"agent": "coder"}),
        ("message.added", {"role": "user", "content": "Look."}),
        ("llm.turn.start", {"model": "m"}),
        ("llm.text.delta", {"text": "I lo", "index": 0}),
        ("llm.text.delta", {"text": "ok.", "index": 0}),
        (
            "llm.turn.end",
            {
                "text": "I look.",
                "toolCalls": [{"id": "c1", "name": "look", "arguments": {"at": 1}}],
                "usage": {"inputTokens": 7, "outputTokens": 5},
                "durationMs": 40,
            },
        ),
        ("tool.start", {"callId": "c1", "toolName": "look"}),
        ("tool.end", {"callId": "c1", "output": "ghp_" + "a1B2" * 9, "status": "completed", "durationMs": 6}),
        ("llm.turn.end", {"text": "Seen.", "usage": {"inputTokens": 9, "outputTokens": 1}}),
        ("run.completed", {}),
    ]
    results = ingest(
        Sender(project, "key:test"), [{"runId": "theirs", "type": kind, "payload": payload} for kind, payload in events]
    )
    assert [one.error for one in results] == [None] * len(events)
    run = AgentRun.objects.get(pk=results[0].run_id)

    recording = record(run)

    first, second = recording.fixture.answers
    assert [event.content for event in first.events if isinstance(event, ContentEvent)] == ["I lo", "ok."]
    assert (first.output.duration_ms, first.output.usage.input_tokens, second.events) == (40, 7, [])
    assert "ghp_" not in dumps(recording.fixture)
    assert conversation_of(play(recording)) == conversation_of(run)


def test_a_run_without_an_answer_cannot_be_recorded() -> None:
    with pytest.raises(NothingRecorded, match="no answer of a model yet"):
        record(make_run())
    assert record(make_awaiting_approval()).notes[-1] == "the run is waiting: only what it has done so far is recorded"
