"""`agentops fixture`: convert, verify, schema."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs.fixtures import fixture_files as fixtures
from runs.fixtures.fixture_files import SHIPPED
from tests.support.machine import ROOT
from tests.support.recordings import recording

Command = Callable[..., str]

CALL: dict[str, Any] = {"input": {}, "output": {"text": "Hi", "usage": {}, "durationMs": 1}, "events": []}
PLAIN: dict[str, Any] = {"input": {"prompt": "Go.", "options": {}}, "output": {"text": "Hi"}}
SECRET = "ghp_" + "a1B2" * 9
CHAT = [{"traj": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}]


def refused_in_full(words: list[str], capsys: pytest.CaptureFixture[str], refused: Any) -> tuple[int, list[str]]:
    code, last = refused(*words)
    return code, [*capsys.readouterr().err.splitlines(), f"agentops: {last}"]


# --- verify -----------------------------------------------------------------------------------------------------
def test_verify_counts_calls_and_tool_calls(command: Command) -> None:
    """`fixture verify` and `verify_fixtures` check the same rules."""
    files = [str(SHIPPED / f"claude-code-{name}.json") for name in ("5c", "7e")]

    lines = [f"{files[0]}\t5\t10\tFalse\texact", f"{files[1]}\t24\t21\tFalse\texact"]
    assert command("fixture", "verify", *files).splitlines() == lines
    assert set(lines) < set(command("verify_fixtures", str(SHIPPED)).splitlines())
    assert json.loads(command("fixture", "verify", files[0], "--json")) == [
        {"file": files[0], "calls": 5, "tool_calls": 10, "ends": False, "form": "exact", "problems": [], "remarks": []}
    ]


def test_verify_accepts_the_plain_form(command: Command) -> None:
    folder = str(recording("fixtures-format"))

    task, verifier = json.loads(command("verify_fixtures", folder, "--json"))

    assert [(one["form"], one["calls"], one["tool_calls"]) for one in (task, verifier)] == [
        ("plain", 1, 0),
        ("plain", 2, 1),
    ]
    assert task["remarks"] == ["$.calls[0]: the text of the events is not output.text, which the conversation has"]
    assert [one["problems"] for one in (task, verifier)] == [[], []]


def test_exit_1_for_a_missing_result_and_for_a_secret(
    refused: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row 107: the error names the place and kind of a secret, not its value. The exit code is the highest of all
    files.
    """
    asked = {
        "type": "tool_call",
        "callId": "c1",
        "toolName": "look",
        "args": {"password": "hunter2-hunter2"},
        "atMs": 1,
    }
    call = {**CALL, "output": {**CALL["output"], "text": f"Use {SECRET} now"}, "events": [asked]}
    (tmp_path / "asks.json").write_text(json.dumps({"calls": [CALL, call]}))
    plain = {"input": {"prompt": SECRET, "options": {}}, "output": {"text": "Hi"}}
    (tmp_path / "node").mkdir()
    (tmp_path / "node/plain.json").write_text(json.dumps({"calls": [plain]}))

    code, lines = refused_in_full(["verify_fixtures", str(tmp_path)], capsys, refused)

    assert code == 1
    assert lines == [
        f"agentops: {tmp_path}/asks.json: $.calls[1].tools: no result for tool call 'c1' of look",
        f"agentops: {tmp_path}/asks.json: $.calls[1].output.text: contains a secret (github_token)",
        f"agentops: {tmp_path}/asks.json: $.calls[1].events[0].args.password: contains a secret (password)",
        f"agentops: {tmp_path}/node/plain.json: $.calls[0].input.prompt: contains a secret (github_token)",
    ]
    (tmp_path / "node/broken.json").write_text("{}")
    assert refused("verify_fixtures", str(tmp_path))[0] == 7
    (tmp_path / "empty").mkdir()
    assert refused("verify_fixtures", str(tmp_path / "empty")) == (
        6,
        f"{tmp_path}/empty: the folder has no .json files",
    )


def broken(**output: Any) -> dict[str, Any]:
    return {"calls": [CALL, {**CALL, "output": {**CALL["output"], **output}}]}


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ("", "$"),
        ("{}", "$.calls"),
        ('{"calls": null}', "$.calls"),
        ('{"calls": {}}', "$.calls"),
        ('{"calls": []}', "$.calls"),
        (json.dumps({"calls": [CALL, {"input": {}, "events": []}]}), "$.calls[1].output"),
        (json.dumps({"calls": [{**CALL, "events": {}}]}), "$.calls[0].events"),
        (json.dumps({"calls": [{**CALL, "events": [{"type": "dance", "atMs": 1}]}]}), "$.calls[0].events[0]"),
        (json.dumps(broken(text=5)), "$.calls[1].output.text"),
        (json.dumps(broken(usage={"inputTokens": -1})), "$.calls[1].output.usage.inputTokens"),
        (json.dumps({"calls": [CALL, CALL], "more": 1}), "$.more"),
        (json.dumps({"calls": [{"input": {"options": {}}, "output": {"text": 5}}]}), "$.calls[0].output.text"),
        (json.dumps({"calls": [{**PLAIN, "events": [{"type": "agent:dance"}]}]}), "$.calls[0].events[0].type"),
        ("[" * 100_000, "$"),
        ('{"calls": NaN}', "$"),
    ],
)
def test_verify_exits_with_7_and_names_the_json_path(refused: Any, tmp_path: Path, content: str, path: str) -> None:
    """Row 106."""
    file = tmp_path / "f.json"
    file.write_text(content)
    code, line = refused("fixture", "verify", str(file))

    assert code == 7
    assert line.startswith(f"{file}: {path}: ")
    assert "\n" not in line


def test_verify_and_convert_exit_with_6_for_an_unreadable_file(refused: Any, tmp_path: Path) -> None:
    """Row 105."""
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(2 * 1024**3)
    for path in ("missing", ".", "fifo", "/dev/zero", "huge", "x" * 5000):
        for verb in (["verify"], ["convert", "--output", str(tmp_path / "out")]):
            name = str(tmp_path / path) + (".jsonl" if verb[0] == "convert" and path == "missing" else "")
            code, line = refused("fixture", *verb, name)
            assert (code, "\n" in line) == (6 if verb[0] == "verify" or path == "missing" else 7, False)
    assert not (tmp_path / "out").exists()


def test_verify_checks_every_file(refused: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text("{}")
    good = str(SHIPPED / "claude-code-5c.json")
    files = [str(tmp_path / "bad.json"), good, str(tmp_path / "none.json")]
    code, lines = refused_in_full(["fixture", "verify", *files], capsys, refused)

    assert code == 7
    assert [line.split(":")[1].strip() for line in lines] == [files[0], files[2]]


# --- convert ----------------------------------------------------------------------------------------------------
def test_convert_creates_fixtures_that_verify_accepts(command: Command, refused: Any, tmp_path: Path) -> None:
    (tmp_path / "chats.json").write_text(json.dumps(CHAT * 2))
    out = tmp_path / "new" / "out"
    words = ["fixture", "convert", str(tmp_path / "chats.json"), "--output", str(out)]
    source = tmp_path / "chats.json"
    assert command(*words).splitlines() == [
        "SOURCE\tANSWERS\tCONVERTED\tLEFT OUT\tTOOL CALLS\tENDS\tFIXTURE",
        *(f"{source}\t1\t1\tnone\t0\tFalse\t{out}/tau-bench-{n}.json" for n in (0, 1)),
    ]

    assert fixtures.load(out / "tau-bench-0.json").answers[0].input.prompt == "hello"
    assert command("fixture", "verify", f"{out}/tau-bench-0.json")
    assert sorted(os.listdir(out)) == ["tau-bench-0.json", "tau-bench-1.json"]

    code, line = refused(*words)
    assert (code, "--force" in line) == (5, True)
    assert json.loads(command(*words, "--force", "--json"))[1]["file"] == f"{out}/tau-bench-1.json"


def test_convert_writes_all_files_or_none(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(CHAT))
    (tmp_path / "bad.json").write_text(json.dumps([{"traj": [{"role": "nobody", "content": "x"}]}]))
    good, bad, out = str(tmp_path / "good.json"), str(tmp_path / "bad.json"), str(tmp_path / "out")

    code, line = refused("fixture", "convert", good, bad, "--output", out)
    assert (code, line.startswith(f"{bad}: $[0].traj[0]: ")) == (7, True)
    code, line = refused("fixture", "convert", good, good, "--output", out)
    assert (code, "'tau-bench-0'" in line) == (5, True)
    assert not Path(out).exists()


def test_convert_gives_a_session_a_name_that_the_provider_accepts(command: Command, tmp_path: Path) -> None:
    recorded = recording("claude-code/b0-be9accda39-0.jsonl")
    session = tmp_path / ".my session (1).jsonl"
    session.write_bytes(recorded.read_bytes())
    [row] = json.loads(command("fixture", "convert", str(session), "--output", str(tmp_path), "--json"))

    assert row["file"] == f"{tmp_path}/my-session-1-.json"


def test_an_output_that_cannot_be_written_exits_with_6(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "chats.json").write_text(json.dumps(CHAT))

    code, line = refused("fixture", "convert", str(tmp_path / "chats.json"), "--output", str(tmp_path / "chats.json"))
    assert (code, str(tmp_path / "chats.json") in line) == (6, True)


def test_convert_lists_the_answers_that_it_leaves_out(command: Command, tmp_path: Path) -> None:
    source = recording("claude-code/7e-d4051c8a85-0.jsonl")
    words = ["fixture", "convert", str(source), "--output", str(tmp_path)]

    _, row = (line.split("\t") for line in command(*words).splitlines())

    assert row[:4] == [str(source), "30", "24", "6 before the context was cleared"]
    [told] = json.loads(command(*words, "--force", "--json"))
    assert (told["answers"], told["calls"], told["left_out"]) == (30, 24, {"before the context was cleared": 6})


# --- schema -----------------------------------------------------------------------------------------------------
def test_schema_prints_the_published_schema(command: Command) -> None:
    printed = json.loads(command("fixture", "schema"))

    assert printed == json.loads((ROOT / "docs/reference/fixture.schema.json").read_text())
    assert printed == json.loads(command("fixture", "schema", "--json"))
