"""Every recording of ../shared plays to its end as a run, and what is stored is what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from agentops.projects.models import Notification
from runs.actions.resume import resume
from runs.fixtures import library
from runs.fixtures.fixture_messages import canonical
from runs.fixtures.format import Fixture, conversation, dumps, parse
from runs.models import AgentRun
from runs.statuses import ToolStatus
from runs.upkeep import invariants
from tests.support.factories import drive, make_agent, make_run
from tests.support.recordings.independent_counts import Counts, of_record, of_session
from tests.support.recordings.shared_recordings import NAMES, fixture_of, path_of
from timeline.models import Event
from timeline.redaction.redact import DEFAULT as REDACTOR

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


def play(fixture: Fixture, name: str, pace: int = 0) -> AgentRun:
    start = fixture.answers[0].input
    agent = make_agent(fixture=name, instructions=start.system or "", settings={"pace": pace})
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
    # Played at once, nothing was streamed: each block came whole.
    assert not Event.objects.filter(log=run.pk, type__contains=".delta").exists()
    assert logged_blocks(run) == stored_blocks(run)


@pytest.mark.parametrize("name", NAMES)
def test_the_joined_deltas_equal_the_text_of_every_answer(name: str, put: Put) -> None:
    fixture = fixture_of(name)
    run = play(fixture, put(fixture), pace=1000)
    assert run.status == "completed"
    assert logged_blocks(run) == stored_blocks(run)


Blocks = list[tuple[int, int, str, str]]


def logged_blocks(run: AgentRun) -> Blocks:
    """Step, place in the answer, kind and text of every block, as its events tell it."""
    texts: dict[tuple[int, int, str], str] = {}
    for event in Event.objects.filter(log=run.pk, type__regex=r"^llm\.(text|thinking)").order_by("seq"):
        kind = event.type.split(".")[1]
        key = (event.step, event.payload["index"], kind)
        assert event.type.endswith(".delta") or key not in texts, "a block that was streamed is told twice"
        texts[key] = texts.get(key, "") + event.payload["text"]
    return sorted((*key, text) for key, text in texts.items())


def stored_blocks(run: AgentRun) -> Blocks:
    """The same of the rows, redacted."""
    return sorted(
        (message.step_number, index, part["part_kind"], REDACTOR.clean_text(part["content"])[0])
        for message in run.messages.filter(role="assistant")
        for index, part in enumerate(message.content["parts"])
        if part["part_kind"] in ("text", "thinking") and part["content"]
    )


# --- Recordings that are played whole, or said not to be ------------------------------------------------------------


def entry(text: str = "", *, tool: str = "", **more: Any) -> dict[str, Any]:
    call = {"part_kind": "tool-call", "tool_name": "look", "tool_call_id": tool, "args": "{}"}
    parts = [*([{"part_kind": "text", "content": text}] if text else []), *([call] if tool else [])]
    output = {"text": text, "usage": {}, "durationMs": 0, "message": {"kind": "response", "parts": parts}}
    return {
        "input": {},
        "events": [],
        "output": output,
        **({"tools": {tool: {"output": "seen"}}} if tool else {}),
        **more,
    }


def recording(*entries: dict[str, Any]) -> Fixture:
    return parse(json.dumps({"calls": [{**entries[0], "input": {"prompt": "Go."}}, *entries[1:]]}))


def test_answers_of_text_alone_in_the_middle_do_not_end_a_recording(put: Put) -> None:
    fixture = recording(
        entry("one"), entry("two"), entry("three", tool="1"), entry("four"), entry("five", tool="2"), entry("six")
    )

    run = play(fixture, put(fixture))

    assert (run.status, run.step_count, run.result) == ("completed", 6, "six")
    stored = [{"role": m.role, "content": canonical(m.content)} for m in run.messages.order_by("position")]
    assert stored == conversation(fixture)
    assert invariants.check(run.pk) == []


def test_a_pause_between_two_answers_goes_on_with_the_next(put: Put) -> None:
    """A budget of one step a run: each resume plays one answer more, and none is taken for the last."""
    name = put(recording(entry("one"), entry("two"), entry("three")))
    run = drive(make_run(make_agent(fixture=name, max_steps=1), "Go."))
    for _ in range(2):
        assert (run.status, run.status_reason) == ("paused", "max_steps")
        run = drive(resume(run.pk, by="test").run)

    assert (run.status, run.step_count, run.result) == ("completed", 3, "three")


@pytest.mark.parametrize("policies", [{}, {"on_error": {"action": "resume", "attempts": "forever", "cooldown": "1s"}}])
def test_a_recording_that_stops_without_an_end_pauses_the_run(put: Put, policies: dict[str, Any]) -> None:
    """It was played in part: the run asks for an answer that is not there. No policy can make one."""
    name = put(recording(entry("one"), entry("two", tool="1")))

    run = drive(make_run(make_agent(fixture=name, policies=policies, slug="player"), "Go."))

    assert (run.status, run.status_reason, run.error_type) == ("paused", "fixture_exhausted", "fixture_exhausted")
    assert run.error_message == "No fixture for player call 3"
    paused = Event.objects.get(log=run.pk, type="run.paused")
    assert paused.payload["detail"] == "No fixture for player call 3"
    assert invariants.check(run.pk) == []
    note = Notification.objects.get()
    assert (note.kind, note.run_id) == ("paused", run.pk)
    assert note.text.startswith("No fixture for player call 3\nFork the run")

    again = drive(resume(run.pk, by="test").run)
    assert (again.status, again.status_reason) == ("paused", "fixture_exhausted")


def test_an_end_completes_a_recording_that_stops_at_a_tool_result(put: Put) -> None:
    name = put(recording(entry("one"), entry("two", tool="1"), {"end": True}))

    assert drive(make_run(make_agent(fixture=name), "Go.")).status == "completed"
