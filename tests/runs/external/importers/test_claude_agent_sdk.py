"""Messages of the Claude Agent SDK as runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.external.importers.base import ImportRefused
from tests.support.recordings import content_of, counts, import_path, recording, tokens_of
from timeline.models import Event

pytestmark = pytest.mark.django_db

FILES = [
    "coding-agent-add-two-numbers.json",
    "golden-text-streaming.json",
    "golden-tool-use-roundtrip.json",
    "parser-agent-cycle-detection.json",
    "raw-sdk-capture.json",
    "recordings-coder.json",
    "recordings-planner.json",
]


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="sdk", name="SDK")


def data(name: str) -> Path:
    return recording(f"claude-agent-sdk/{name}")


def messages_of(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text())
    if "calls" in document:
        return [event for call in document["calls"] for event in call["events"]]
    return [each.get("message", each) if "type" not in each else each for each in document["messages"]]


def blocks(messages: list[dict[str, Any]], type_: str) -> Iterator[dict[str, Any]]:
    for one in messages:
        content = one["message"]["content"] if one["type"] in ("user", "assistant") else []
        yield from (block for block in content if isinstance(block, dict) and block["type"] == type_)


@pytest.mark.parametrize("name", FILES)
def test_a_list_of_messages_is_imported_whole_and_once(project: Project, name: str) -> None:
    report = import_path(project, data(name))
    [run] = report.runs

    messages = messages_of(data(name))
    answers = {one["message"]["id"] for one in messages if one["type"] == "assistant"}
    results = list(blocks(messages, "tool_result"))
    has_prompt = "prompt" in json.loads(data(name).read_text()) or name.startswith("recordings")
    assert run.messages.count() == len(answers) + len(results) + has_prompt
    calls = run.tool_calls.all()
    assert {call.call_id for call in calls} == {block["id"] for block in blocks(messages, "tool_use")}
    assert sum(call.status == "error" for call in calls) == sum(block.get("is_error") is True for block in results)
    [result] = [one for one in messages if one["type"] == "result"]
    assert (run.status, run.result) == ("completed", result["result"])
    assert run.structured_output == result.get("structured_output")
    assert round(float(run.cost_usd or 0), 6) == round(result["total_cost_usd"], 6)
    if any(one["type"] == "stream_event" for one in messages):
        used = result["usage"]
        cached = used["cache_read_input_tokens"], used["cache_creation_input_tokens"]
        assert tokens_of(run) == (used["input_tokens"] + sum(cached), used["output_tokens"], *cached)

    before = counts(project)
    again = import_path(project, data(name))
    assert (again.new_runs, again.events, counts(project)) == (0, 0, before)


SESSION = {"session_id": "s1"}
INIT = {"type": "system", "subtype": "init", "model": "claude-sonnet-4-5", "cwd": "/work/app", **SESSION}
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "Done", **SESSION}


def message(type_: str, *content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": type_, "message": {"role": type_, "content": list(content)}, **SESSION, **fields}


TASK = {"type": "tool_use", "id": "c1", "name": "Task", "input": {"prompt": "One"}}


def test_messages_of_a_sub_agent_are_a_child_run(project: Project, tmp_path: Path) -> None:
    """As lines, which is the output format of the program."""
    path = tmp_path / "stream.jsonl"
    lines = [
        INIT,
        message("assistant", TASK),
        message("user", {"type": "text", "text": "One"}, parent_tool_use_id="c1"),
        message("assistant", {"type": "text", "text": "1"}, parent_tool_use_id="c1"),
        message("user", {"type": "tool_result", "tool_use_id": "c1", "content": "1"}),
        message("assistant", {"type": "text", "text": "Done"}),
        RESULT,
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))

    parent, child = import_path(project, path).runs

    assert (parent.status, parent.result) == ("waiting", "Done")
    assert (child.status, child.prompt) == ("completed", "One")
    assert parent.tool_calls.get().child_run_id == child.pk
    assert parent.labels == ["folder:app"]


FAILED = {**RESULT, "subtype": "error_max_turns", "is_error": True, "result": None}


def test_an_error_result_fails_the_run_with_its_totals(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "failed.json"
    failed = {**FAILED, "total_cost_usd": 0.25, "usage": {"input_tokens": 7, "output_tokens": 3}}
    path.write_text(json.dumps([INIT, message("assistant", TASK), failed]))

    [run] = import_path(project, path).runs

    assert (run.status, run.error_type) == ("failed", "error_max_turns")
    assert [call.status for call in run.tool_calls.all()] == ["unknown"]
    assert tokens_of(run) == (7, 3, 0, 0)
    assert (run.cost_usd, run.cost_source) == (Decimal("0.25"), "reported")


def says(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


#: Two turns of one program, then the session resumed by another, with costs restarting at zero; it fails and continues.
TURNS: list[dict[str, Any]] = [
    INIT,
    message("user", says("One?")),
    message("assistant", says("1")),
    {**RESULT, "result": "1", "total_cost_usd": 0.02, "uuid": "r1"},
    message("user", says("Two?")),
    message("assistant", says("2")),
    {**RESULT, "result": "2", "total_cost_usd": 0.05, "structured_output": {"n": 2}, "uuid": "r2"},
    INIT,
    message("user", says("Three?")),
    message("assistant", says("3")),
    {**FAILED, "total_cost_usd": 0.01, "uuid": "r3"},
    message("user", says("Four?")),
]


def test_a_session_continues_after_its_results(project: Project, tmp_path: Path) -> None:
    """Importing its lines at once or one by one gives the same result."""
    path = tmp_path / "session.jsonl"
    seen = []
    for end in range(2, len(TURNS) + 1):
        path.write_text("".join(f"{json.dumps(line)}\n" for line in TURNS[:end]))
        [run] = import_path(project, path).runs
        assert (run.status, run.status_reason) == ("waiting", "input")
        if TURNS[end - 1]["type"] == "result":
            seen.append((run.messages.count(), run.result, float(run.cost_usd or 0)))

    assert seen == [(2, "1", 0.02), (4, "2", 0.05), (6, "2", 0.06)]
    assert run.structured_output == {"n": 2}
    assert [(error.error_type, error.step_number) for error in run.errors.all()] == [("error_max_turns", 4)]
    assert not Event.objects.filter(log=run.pk, late=True).exists()

    other = Project.objects.create(slug="other", name="Other")
    [whole] = import_path(other, path).runs
    assert content_of(whole) == content_of(run)
    assert (whole.result, whole.structured_output, whole.status) == (run.result, run.structured_output, run.status)
    phases = Event.objects.filter(log=whole.pk, type="run.phase").values_list("payload__reason", flat=True)
    assert list(phases) == ["continued"] * 3


def test_a_document_ends_with_its_last_result(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "turns.json"
    path.write_text(json.dumps(TURNS[:7]))
    [run] = import_path(project, path).runs
    assert (run.status, run.result, run.messages.count()) == ("completed", "2", 4)

    path.write_text(json.dumps([{**line, "session_id": "s2"} for line in TURNS[:6]]))
    [run] = import_path(project, path).runs
    assert (run.status, run.result, run.messages.count()) == ("waiting", "1", 4)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (7, "bad.json: /messages/1: not a JSON object"),
        ({"session_id": "s1"}, "bad.json: /messages/1: not a message of the SDK: it has no type"),
        ({"type": "user", "message": 1}, "bad.json: /messages/1: user line without a message object"),
        (message("user", {"type": "tool_result"}), "bad.json: /messages/1: message.content[0].tool_use_id is not"),
    ],
)
def test_a_bad_message_is_reported_and_nothing_is_stored(project: Project, tmp_path: Path, bad: Any, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"messages": [INIT, bad]}))

    with pytest.raises(ImportRefused) as error:
        import_path(project, path)

    assert str(error.value).startswith(text)
    assert counts(project)["runs"] == 0


def test_a_message_whose_type_is_a_list_is_refused(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"messages": [{"type": [], "session_id": "s1"}]}))

    with pytest.raises(ImportRefused, match="none of these formats"):
        import_path(project, path)


def test_a_plain_fixture_is_refused(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "coder.json"
    path.write_text(json.dumps({"calls": [{"input": {"prompt": "x"}, "output": {"text": "y"}, "events": []}]}))

    with pytest.raises(ImportRefused, match="none of these formats"):
        import_path(project, path)


def test_a_recording_at_the_end_of_the_calendar_is_read(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "late.json"
    messages = [{"relativeTimestamp": 9e11, "message": one} for one in TURNS[:4]]
    path.write_text(json.dumps({"metadata": {"recordedAt": "9999-12-31T00:00:00Z"}, "messages": messages}))

    [run] = import_path(project, path).runs

    assert run.messages.count() > 1
