"""Chats of Gemini CLI as runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentops.projects.models import Project
from runs.external.importers.base import ImportRefused
from tests.support.imported_runs import content_of, counts, import_path, tokens_of
from tests.support.services import shared_directory

pytestmark = pytest.mark.django_db


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="chats", name="Chats")


@pytest.fixture
def chat() -> Path:
    return shared_directory() / "data" / "gemini-cli" / "faff42ab.json"


def test_a_chat_is_imported_whole_and_once(project: Project, chat: Path) -> None:
    [run] = import_path(project, chat).runs

    messages = json.loads(chat.read_text())["messages"]
    calls = [call for one in messages for call in one.get("toolCalls", [])]
    tokens = [one["tokens"] for one in messages if "tokens" in one]
    assert run.messages.count() == len(messages) + len(calls)
    assert tokens_of(run)[:3] == (
        sum(one["input"] for one in tokens),
        sum(one["output"] + one["thoughts"] for one in tokens),
        sum(one["cached"] for one in tokens),
    )
    assert {call.call_id: (call.status, call.input) for call in run.tool_calls.all()} == {
        call["id"]: ("completed", call["args"]) for call in calls
    }
    assert "hello from gemini" in run.tool_calls.values_list("output", flat=True)
    assert (run.status, run.title) == ("waiting", "add new text to test-gemini.txt")
    before = counts(project)
    assert import_path(project, chat).events == 0
    assert counts(project) == before


def test_a_chat_that_grows_has_the_same_rows(project: Project, chat: Path, tmp_path: Path) -> None:
    document = json.loads(chat.read_text())
    growing = tmp_path / "chat.json"
    for count in range(1, len(document["messages"]) + 1):
        growing.write_text(json.dumps({**document, "messages": document["messages"][:count]}))
        [run] = import_path(project, growing).runs
    [whole] = import_path(Project.objects.create(slug="whole", name="Whole"), chat).runs

    assert content_of(run) == content_of(whole)


def test_a_failed_call_and_one_without_a_result(project: Project, tmp_path: Path) -> None:
    failed = {"id": "a", "name": "run", "args": {}, "status": "error", "result": [{"functionResponse": {"response": {"error": "no"}}}]}  # fmt: skip  # noqa: E501
    running = {"id": "b", "name": "run", "args": {}, "status": "executing"}
    path = tmp_path / "chat.json"
    message = {"id": "m", "type": "gemini", "content": "", "toolCalls": [failed, running]}
    path.write_text(json.dumps({"sessionId": "s", "messages": [message]}))

    [run] = import_path(project, path).runs

    statuses = dict(run.tool_calls.values_list("call_id", "status"))
    assert statuses == {"a": "error", "b": "unknown"}
    assert run.tool_calls.get(call_id="a").output == "no"


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (1, "chat.json: /messages/0: not a JSON object"),
        ({"type": 5}, "chat.json: /messages/0/type: not the type of a message"),
        ({"type": "gemini", "toolCalls": 1}, "chat.json: /messages/0/toolCalls: not a list of objects"),
        ({"type": "gemini", "toolCalls": [{}]}, "chat.json: /messages/0/toolCalls/0/id: not a call ID"),
    ],
)
def test_a_bad_message_is_named_and_nothing_is_stored(project: Project, tmp_path: Path, bad: Any, text: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"sessionId": "s", "messages": [bad]}))

    with pytest.raises(ImportRefused) as error:
        import_path(project, path)

    assert str(error.value) == text
    assert counts(project)["runs"] == 0
