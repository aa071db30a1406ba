"""Files with damaged lines: every complete record is imported, and omitted parts are reported everywhere."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from agentops.base.http.strict_json import NotJson
from runs.external.importers import formats, stored_lines
from runs.external.importers.base import FIRST_RECORDS, ImportFile, ImportRefused, read_json
from runs.external.importers.stored_lines import MAX_NAMED, NUL_BYTES, Damage, Whole, split_line
from runs.models import AgentRun
from tests.support.factories import make_project
from tests.support.recordings import counts, import_path, recording
from tests.support.timing import assert_linear

DAMAGED = "public-cases/03-damaged-line"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("damaged")


def texts(run: AgentRun) -> list[str]:
    rows = run.messages.order_by("position")
    return [part["content"] for row in rows for part in row.content["parts"]]


def events_of(run: AgentRun) -> list[dict[str, Any]]:
    return list(run.log.events.filter(type="import.left_out").order_by("seq").values_list("payload", flat=True))


@pytest.mark.parametrize(
    ("name", "left_out", "reason"),
    [
        ("two-records-on-one-line.jsonl", [], ""),
        ("cut-last-line.jsonl", [], ""),
        ("cut-line-in-the-middle.jsonl", [3], "Unterminated string"),
        ("nul-block.jsonl", [3], NUL_BYTES),
    ],
)
def test_complete_records_are_imported(project: Project, name: str, left_out: list[int], reason: str) -> None:
    report = import_path(project, recording(f"{DAMAGED}/{name}"))

    [run] = report.runs
    assert texts(run) == ["Start the migration", "Started.", "Go on", "Finished."]
    assert [one.line for one in report.left_out.lines] == left_out
    assert all(one.reason.startswith(reason) for one in report.left_out.lines)
    assert report.left_out.cut_line == (5 if name == "cut-last-line.jsonl" else None)
    assert [event["line"] for event in events_of(run)] == left_out
    if name == "two-records-on-one-line.jsonl":
        assert run.title == "Migration"

    before = counts(project)
    again = import_path(project, recording(f"{DAMAGED}/{name}"))
    assert (again.events, counts(project)) == (0, before)


@pytest.mark.parametrize(
    "name", ["two-records-on-one-line.jsonl", "cut-last-line.jsonl", "cut-line-in-the-middle.jsonl", "nul-block.jsonl"]
)
def test_a_strict_import_refuses_damaged_files(project: Project, name: str) -> None:
    if name == "two-records-on-one-line.jsonl":
        assert import_path(project, recording(f"{DAMAGED}/{name}"), is_strict=True).new_runs == 1
        return
    with pytest.raises(ImportRefused, match=rf"^{name}:[35]: "):
        import_path(project, recording(f"{DAMAGED}/{name}"), is_strict=True)
    assert counts(project)["runs"] == 0


CLAUDE: dict[str, Any] = {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "Hello"}}
SDK: dict[str, Any] = {"type": "user", "session_id": "s", "message": {"role": "user", "content": "Hello"}}
CODEX: dict[str, Any] = {"type": "response_item", "payload": {"type": "message", "role": "user", "content": "Hello"}}
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
GEMINI = {"sessionId": "s", "projectHash": "h"}
ACTION = {"source": "user", "action": "message", "args": {"content": "Hello"}}
OBSERVATION = {"id": "o", "type": "GENERATION", "startTime": "2026-01-01T00:00:00Z", "input": "Hello"}
#: Two or more complete records in each line-based format.
FORMATS: dict[str, list[Any]] = {
    "claude-code": [{**CLAUDE, "uuid": "u1"}, {**CLAUDE, "uuid": "u2"}],
    "claude-agent-sdk": [SDK, SDK],
    "codex": [{"type": "session_meta", "payload": {"id": "s"}}, CODEX, CODEX],
    "gemini-cli": [
        GEMINI,
        {"id": "1", "type": "user", "content": "Hello"},
        {"id": "2", "type": "user", "content": "x"},
    ],
    "openai-chat": [{"id": "1", **CHAT}, {"id": "2", **CHAT}],
    "openhands": [{"id": 1, **ACTION}, {"id": 2, **ACTION}],
    "langfuse": [{"trace": {"id": f"t{n}"}, "observations": [{**OBSERVATION, "traceId": f"t{n}"}]} for n in (1, 2)],
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_line_based_format_imports_complete_records(project: Project, tmp_path: Path, name: str) -> None:
    whole, damaged = tmp_path / "whole.jsonl", tmp_path / "damaged.jsonl"
    records = [json.dumps(record) for record in FORMATS[name]]
    whole.write_text("".join(record + "\n" for record in records))
    rest = "".join(record + "\n" for record in records[2:])
    # A byte order mark, two records on a line, a number, a torn line, and a line still being written.
    damaged.write_text(f'{records[0]}{records[1]}\n42\n{{"type": "us\n{rest}{{"type":', encoding="utf-8-sig")

    expected = import_path(make_project("whole"), whole)
    report = import_path(project, damaged)

    assert formats.find(ImportFile.open(damaged)).name == name
    assert [one.line for one in report.left_out.lines] == [2, 3]
    assert report.left_out.cut_line == damaged.read_text().count("\n") + 1
    assert report.new_runs == expected.new_runs
    for run, other in zip(report.runs, expected.runs, strict=True):
        assert texts(run) == texts(other) != []
    assert [event["line"] for event in events_of(report.runs[0])] == [2, 3]


def test_many_damaged_lines_are_counted_and_the_first_are_listed(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({**CLAUDE, "uuid": "u"}) + "\n" + "damaged\n" * 50)

    report = import_path(project, path)

    assert (report.left_out.count, len(report.left_out.lines)) == (50, MAX_NAMED)
    assert report.left_out.sentences()[-1] == f"left out 30 further lines, from line {MAX_NAMED + 2} on"
    assert len(events_of(report.runs[0])) == MAX_NAMED + 1
    assert events_of(report.runs[0])[-1]["has_more"] is True
    path.write_text(path.read_text() + "damaged\n")
    assert import_path(project, path).events == 0


def test_a_file_without_a_complete_record_is_refused_with_the_reason(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"type": "user", "sessionId": "s"}\n{"type": "user", "sessionId": "s", "message": 7}\n')

    with pytest.raises(ImportRefused) as error:
        import_path(project, path)

    reason = "no user or assistant lines; line 1: user line without a message object and 1 more lines"
    assert str(error.value) == f"s.jsonl: {reason}"


def test_a_rollout_with_a_damaged_first_line_has_the_id_of_its_file_name(project: Project, tmp_path: Path) -> None:
    session_id = "bd4ea41f-5b81-58ad-b1ae-f1b4ae023f64"
    path = tmp_path / f"rollout-2026-01-22T16-40-00-{session_id}.jsonl"
    path.write_text('{"type": "session_meta", "payl\n' + json.dumps(CODEX) + "\n")

    report = import_path(project, path)

    assert [run.external_id for run in report.runs] == [f"codex:{session_id}"]
    assert [one.line for one in report.left_out.lines] == [1]


def test_a_line_that_is_too_long_is_omitted(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_lines, "MAX_LINE", 1_000)
    monkeypatch.setattr(stored_lines, "BLOCK", 300)
    path = tmp_path / "s.jsonl"
    lines = [{**CLAUDE, "uuid": "u1"}, {**CLAUDE, "uuid": "u2", "rest": "x" * 2_000}, {**CLAUDE, "uuid": "u3"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    report = import_path(project, path)

    assert (report.left_out.lines[0].line, report.runs[0].messages.count()) == (2, 2)


@pytest.mark.parametrize(
    ("line", "values", "damages"),
    [
        (b'{"a":1}', [{"a": 1}], 0),
        (b'{"a":1}{"b":2} {"c":3}', [{"a": 1}, {"b": 2}, {"c": 3}], 0),
        (b'{"a":1}{"b":', [{"a": 1}], 1),
        # A record that was cut, followed by a record of a new process.
        (b'{"a":{"b":"cut{"c":{"d":1}}', [{"c": {"d": 1}}], 1),
        (b'{"a":1{"b":2}', [{"b": 2}], 1),
        (b'{"a":"\\{"b":2}{"c":3}', [{"b": 2}, {"c": 3}], 1),
        (b'\0\0 \0{"a":1}\0\0', [{"a": 1}], 2),
        # An object inside a cut record does not count as a record.
        (b'{"a":{"b":1}', [], 1),
        (b'b","a":{"b":1}}', [], 1),
        (b'{"a":1,"a":2}', [], 1),
        (b'{"a":"\xff"}', [], 1),
        (b"{" * 100_000, [], 1),
        (b'{"a"' * 100_000, [], 1),
        ('{"ä":"é"}{"b":"€"}'.encode(), [{"ä": "é"}, {"b": "€"}], 0),
    ],
)
def test_the_records_of_a_line(line: bytes, values: list[Any], damages: int) -> None:
    pieces = list(split_line(line, read_json))

    wholes = [piece for piece in pieces if isinstance(piece, Whole)]
    assert [piece.value for piece in wholes] == values
    assert [json.loads(line[piece.begin : piece.end]) for piece in wholes] == values
    assert sum(isinstance(piece, Damage) for piece in pieces) == damages


def test_a_line_of_very_many_records_takes_linear_time() -> None:
    def parse(content: bytes) -> Any:
        if len(content) > 10:
            raise NotJson("invalid_json", 400, "several records")
        return content

    assert_linear(lambda line: list(split_line(line.encode(), parse)), '{"a":1}', 400_000)


def test_a_format_is_detected_from_the_first_records_of_a_line() -> None:
    """Further records, possibly very many, are not kept: they do not increase the memory of reading the line."""
    line = b'{"a":1}' * 300_000

    def look() -> None:
        assert len(ImportFile("lines.jsonl", line).first_lines()) == FIRST_RECORDS

    def parse() -> None:
        with pytest.raises(NotJson):
            read_json(line)

    assert peak_memory(look) < 1.2 * peak_memory(parse)


def peak_memory(run: Callable[[], None]) -> int:
    """Return the peak memory of Python objects, in bytes, while a function runs."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
