"""Chats of Gemini CLI as runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.external.import_runs import ImportReport
from runs.external.importers.base import ImportRefused, NothingToImport
from tests.support.recordings import content_of, counts, import_path, recording, tokens_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="chats", name="Chats")


@pytest.fixture
def chat() -> Path:
    return recording("gemini-cli/faff42ab.json")


def test_a_chat_is_imported_completely_and_once(project: Project, chat: Path) -> None:
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
    # The file gives a call the time of its answer, so calls have no duration.
    assert set(run.tool_calls.values_list("duration_ms", flat=True)) == {None}
    assert (run.status, run.title) == ("waiting", "add new text to test-gemini.txt")
    before = counts(project)
    assert import_path(project, chat).events == 0
    assert counts(project) == before


def test_a_growing_chat_has_the_same_rows(project: Project, chat: Path, tmp_path: Path) -> None:
    document = json.loads(chat.read_text())
    growing = tmp_path / "chat.json"
    for count in range(1, len(document["messages"]) + 1):
        growing.write_text(json.dumps({**document, "messages": document["messages"][:count]}))
        [run] = import_path(project, growing).runs
    [whole] = import_path(Project.objects.create(slug="whole", name="Whole"), chat).runs

    assert content_of(run) == content_of(whole)


PICTURE = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
LINES: list[dict[str, Any]] = [
    {"sessionId": "s", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z", "directories": ["/w/app"]},
    {"id": "1", "type": "user", "timestamp": "2026-01-01T00:00:01Z", "content": [{"text": "Look"}, {"text": "around"}]},
    {"$set": {"lastUpdated": "2026-01-01T00:00:01Z"}},
    {"id": "2", "type": "gemini", "content": "I look.", "thoughts": [], "tokens": None, "model": "gemini-3-pro"},
    {"$set": {"lastUpdated": "2026-01-01T00:00:02Z"}},
    {"id": "3", "type": "gemini", "content": "", "model": "gemini-3-pro"},
    {"id": "4", "type": "gemini", "content": [{"text": "Done."}], "model": "gemini-3-pro"},
    {"$rewindTo": "4"},
    {"id": "5", "type": "user", "content": [{"text": "Again"}, PICTURE]},
    {"$set": {"messages": [{"id": "1", "type": "user"}, {"id": "6", "type": "gemini", "content": "Ok"}]}},
]
TOKENS = {"input": 10, "output": 2, "cached": 4, "thoughts": 1, "tool": 0, "total": 13}


def _call(name: str) -> dict[str, Any]:
    answer = [{"functionResponse": {"id": name, "name": "ls", "response": {"output": f"of {name}"}}}]
    return {"id": name, "name": "ls", "args": {}, "status": "success", "result": answer}


def _versions(order: str) -> list[dict[str, Any]]:
    """Return lines with several versions of message 2, which add its tokens (t) and its calls (a, b)."""
    versions, so_far = [], LINES[3]
    for letter in order:
        calls = [*so_far.get("toolCalls", []), _call(letter)]
        so_far = {**so_far, **({"tokens": TOKENS} if letter == "t" else {"toolCalls": calls})}
        versions.append(so_far)
    return [*LINES[:4], *versions, *LINES[4:]]


@pytest.mark.parametrize("order", ["tab", "atb", "abt"])
def test_a_chat_of_lines_is_the_same_for_every_order_of_growth(project: Project, tmp_path: Path, order: str) -> None:
    lines = [json.dumps(line).encode() + b"\n" for line in _versions(order)]
    path = tmp_path / "session.jsonl"
    path.write_bytes(b"".join(lines))
    [whole] = import_path(project, path).runs
    assert whole.tool_calls.count() == 2
    before = counts(project)
    assert import_path(project, path).events == 0
    assert counts(project) == before

    growing = Project.objects.create(slug="growing", name="Growing")
    for count in range(2, len(lines) + 1):
        path.write_bytes(b"".join(lines[:count]))
        [run] = import_path(growing, path).runs
    for one in (whole, run):
        assert tokens_of(one)[:3] == (10, 3, 4)
        assert dict(one.tool_calls.values_list("call_id", "output")) == {"a": "of a", "b": "of b"}
        assert set(one.tool_calls.values_list("status", flat=True)) == {"completed"}
        assert (one.title, one.labels, one.agent_config["model"]) == ("Look", ["folder:app"], "gemini-3-pro")
        users = one.messages.filter(role="user").order_by("position")
        assert next(row.content["parts"][0]["content"] for row in users) == "Look\naround"
        assert users.count() == 2
    assert "Ok" in str(list(whole.messages.filter(role="assistant").values_list("content", flat=True)))


@pytest.mark.parametrize("is_whole_document", [False, True])
def test_an_answer_that_gets_its_call_later_stays_one_message(
    project: Project, tmp_path: Path, *, is_whole_document: bool
) -> None:
    """Gemini CLI writes a call when its tool has ended. The file may be imported before."""
    path = tmp_path / ("session.json" if is_whole_document else "session.jsonl")
    session = {"sessionId": "s", "projectHash": "h"}
    user = {"id": "1", "type": "user", "content": "Look"}
    answer = {"id": "2", "type": "gemini", "content": "I look.", "model": "gemini-3-pro", "tokens": TOKENS}
    call = {"id": "a", "name": "read", "args": {"n": 1}, "status": "success"}
    call["result"] = [{"functionResponse": {"response": {"output": "of a"}}}]
    for messages in ([user, answer], [user, {**answer, "toolCalls": [call]}]):
        lines = [json.dumps(line) for line in [session, *messages]]
        path.write_text(json.dumps({**session, "messages": messages}) if is_whole_document else "\n".join([*lines, ""]))
        [run] = import_path(project, path).runs

    [row] = run.messages.filter(role="assistant")
    assert [part["part_kind"] for part in row.content["parts"]] == ["text", "tool-call"]
    assert (run.step_count, run.tool_calls.get().output, run.tool_calls.get().input) == (1, "of a", {"n": 1})
    assert tokens_of(run)[:3] == (10, 3, 4)
    assert import_path(project, path).events == 0


def test_a_chat_without_messages_is_not_imported_yet(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text(json.dumps(LINES[0]) + "\n")
    with pytest.raises(NothingToImport):
        import_path(project, path)
    assert counts(project)["runs"] == 0


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (1, "session.jsonl:2: not a JSON object"),
        ({"id": "1", "type": 5}, "session.jsonl:2: /type: not the type of a message"),
        ({"$set": 1}, "session.jsonl:2: /$set: not an object"),
        ({"$set": {"messages": {}}}, "session.jsonl:2: /$set/messages: not a list"),
        ({"$set": {"messages": [7]}}, "session.jsonl:2: /$set/messages/0: not a JSON object"),
        ({"id": "1", "type": "gemini", "tokens": {"input": -1}}, "session.jsonl:2: /tokens/input: not a number of tok"),
    ],
)
def test_a_bad_line_is_omitted_and_reported_or_refused(project: Project, tmp_path: Path, bad: Any, text: str) -> None:
    path = tmp_path / "session.jsonl"
    last = {"id": "last", "type": "user", "content": "Hello"}
    path.write_text("".join(json.dumps(line) + "\n" for line in (LINES[0], bad, last)))
    with pytest.raises(ImportRefused) as error:
        import_path(project, path, is_strict=True)
    assert str(error.value).startswith(text)
    assert counts(project)["runs"] == 0

    report = import_path(project, path)
    [left_out] = report.left_out.lines
    assert f"session.jsonl:{left_out.line}: {left_out.reason}".startswith(text)
    assert report.runs[0].messages.count() == 1


def test_a_failed_call_and_a_call_without_a_result(project: Project, tmp_path: Path) -> None:
    failed = {
        "id": "a",
        "name": "run",
        "args": {},
        "status": "error",
        "result": [{"functionResponse": {"response": {"error": "no"}}}],
    }
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
def test_a_bad_message_is_reported_and_nothing_is_stored(project: Project, tmp_path: Path, bad: Any, text: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"sessionId": "s", "messages": [bad]}))

    with pytest.raises(ImportRefused) as error:
        import_path(project, path)

    assert str(error.value) == text
    assert counts(project)["runs"] == 0


# --- /chat save -----------------------------------------------------------------------------------------------------


def _content(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def _function(name: str, response: dict[str, Any], **ids: str) -> dict[str, Any]:
    return {"functionResponse": {**ids, "name": name, "response": response}}


CONTEXT = "This is the Gemini CLI. We are setting up the context for our chat.\nToday's date is Friday, July 4, 2025."
LS, READ = "ls-1751600000000-1a", "read_file-1751600000001-2b"
SAVED = [
    _content("user", {"text": CONTEXT}),
    _content("model", {"text": "Got it. Thanks for the context!"}),
    _content("user", {"text": "What is in notes.txt?\nBe short."}),
    _content(
        "model",
        {"text": "**Looking**", "thought": True},
        {"text": "I look."},
        {"functionCall": {"id": LS, "name": "ls", "args": {"path": "."}}, "thoughtSignature": "c2ln"},
        {"functionCall": {"id": READ, "name": "read_file", "args": {"path": "notes.txt"}}},
    ),
    _content(
        "user",
        _function("ls", {"output": "notes.txt"}, id=LS),
        _function("read_file", {"error": "File is binary"}, id=READ),
        PICTURE,
    ),
    _content("model", {"text": "A picture."}),
    _content("user", {"text": "Thanks"}),
    _content("model", {"text": "You are welcome."}),
]


@pytest.mark.parametrize("is_old", [False, True], ids=["history", "a list, without IDs"])
def test_a_saved_chat_is_imported_and_continues_when_saved_again(
    project: Project, tmp_path: Path, is_old: bool
) -> None:
    history = json.loads(json.dumps(SAVED))
    for part in (part for content in history for part in content["parts"] if is_old):
        for name in ("functionCall", "functionResponse"):
            part.get(name, {}).pop("id", None)
    path = tmp_path / "checkpoint-notes.json"

    def save(contents: list[Any]) -> ImportReport:
        path.write_text(json.dumps(contents if is_old else {"history": contents, "authType": "oauth-personal"}))
        return import_path(project, path)

    save(history[:6])
    [run] = save(history).runs

    assert save(history).events == 0
    assert counts(project)["runs"] == 1
    assert (run.title, run.status, run.agent_config["agent_id"]) == ("What is in notes.txt?", "waiting", "gemini-cli")
    rows = list(run.messages.order_by("position"))
    assert [row.role for row in rows] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool_result",
        "tool_result",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    thinking, text = rows[3].content["parts"][:2]
    assert (thinking["content"], text["content"]) == ("**Looking**", "I look.")
    assert {call.tool_name: (call.status, call.input, call.output) for call in run.tool_calls.all()} == {
        "ls": ("completed", {"path": "."}, "notes.txt"),
        "read_file": ("error", {"path": "notes.txt"}, "File is binary"),
    }
    assert "image/png" in json.dumps(rows[6].content)
    # The saved chat was resumed, and saved after another turn.
    assert len(save([*history[:6], _content("user", {"text": "And now?"})]).runs[0].messages.all()) == len(rows) + 1
    # A file with a different answer is another chat.
    save([*history[:3], _content("model", {"text": "Nothing."})])
    assert counts(project)["runs"] == 2


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"role": "owner", "parts": []}, "/history/8/role: must be user or model"),
        ({"role": "user", "parts": "x"}, "/history/8/parts: must be a list, not a text"),
        ({"role": "user", "parts": [1]}, "/history/8/parts/0: must be an object, not a number"),
        ({"role": "model", "parts": [{"functionCall": {}}]}, "/history/8/parts/0/functionCall/name: must be a text"),
    ],
)
def test_a_bad_content_of_a_saved_chat_is_reported(project: Project, tmp_path: Path, bad: Any, text: str) -> None:
    path = tmp_path / "checkpoint-notes.json"
    path.write_text(json.dumps({"history": [*SAVED, bad]}))
    with pytest.raises(ImportRefused) as error:
        import_path(project, path)
    assert str(error.value).startswith(f"checkpoint-notes.json: {text}")
    assert counts(project)["runs"] == 0
