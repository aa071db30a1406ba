"""Rollouts of Codex as runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.external.importers.base import ImportRefused, NothingToImport
from tests.support.recordings import counts, import_path, recording, tokens_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="rollouts", name="Rollouts")


@pytest.fixture
def sample() -> Path:
    return recording("codex/codex-rollout.sample.jsonl")


def test_a_rollout_is_imported_completely_and_once(project: Project, sample: Path) -> None:
    [run] = import_path(project, sample).runs

    payloads = [json.loads(line)["payload"] for line in sample.read_text().splitlines()]
    total = [one["info"]["total_token_usage"] for one in payloads if one.get("type") == "token_count"][-1]
    assert tokens_of(run)[:3] == (total["input_tokens"], total["output_tokens"], total["cached_input_tokens"])
    assert run.reasoning_tokens == total["reasoning_output_tokens"]
    assert list(run.messages.order_by("position").values_list("role", flat=True)) == [
        "system",
        "user",
        "assistant",
        "tool_result",
        "assistant",
        "tool_result",
        "assistant",
    ]
    calls = [one for one in payloads if one.get("type") == "function_call"]
    assert {call.call_id: call.input for call in run.tool_calls.all()} == {
        call["call_id"]: json.loads(call["arguments"]) for call in calls
    }
    assert (run.labels, run.agent_config["model"]) == (["folder:work"], "gpt-5.5")
    assert (run.status, run.title) == ("waiting", "List the files in the repo root and tell me what's there.")
    # Not the time of the import.
    assert (run.log.last_event_at - run.started_at).total_seconds() < 60
    before = counts(project)
    assert import_path(project, sample).events == 0
    assert counts(project) == before


def test_a_rollout_growing_line_by_line_has_the_same_calls_and_tokens(
    project: Project, sample: Path, tmp_path: Path
) -> None:
    lines = sample.read_bytes().splitlines(keepends=True)
    growing = tmp_path / "rollout.jsonl"
    growing.write_bytes(b"".join(lines[:2]))
    with pytest.raises(NothingToImport):
        import_path(project, growing)
    assert counts(project)["runs"] == 0
    for count in range(3, len(lines) + 1):
        growing.write_bytes(b"".join(lines[:count]))
        [run] = import_path(project, growing).runs
    [whole] = import_path(Project.objects.create(slug="whole", name="Whole"), sample).runs

    assert tokens_of(run) == tokens_of(whole)
    statuses = [list(each.tool_calls.values_list("call_id", "status").order_by("call_id")) for each in (run, whole)]
    assert statuses[0] == statuses[1]


def test_a_command_that_fails_is_an_error(project: Project, sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_text(sample.read_text().replace("Process exited with code 0", "Process exited with code 2"))

    [run] = import_path(project, path).runs

    assert sorted(run.tool_calls.values_list("status", flat=True)) == ["completed", "error"]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("[]", "rollout.jsonl:16: not a JSON object"),
        ("{", "rollout.jsonl:16: "),
        ('{"type": "response_item"}', "rollout.jsonl:16: not a line of a rollout"),
        ('{"type": "response_item", "payload": {"type": "function_call"}}', "rollout.jsonl:16: function_call without"),
    ],
)
def test_a_bad_line_is_omitted_and_reported_or_refused(
    project: Project, sample: Path, tmp_path: Path, bad: str, text: str
) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_text(sample.read_text().rstrip("\n") + "\n" + bad + "\n")

    with pytest.raises(ImportRefused) as error:
        import_path(project, path, is_strict=True)
    assert str(error.value).startswith(text)
    assert counts(project)["runs"] == 0

    report = import_path(project, path)
    [left_out] = report.left_out.lines
    assert f"rollout.jsonl:{left_out.line}: {left_out.reason}".startswith(text)
    assert report.events > 5


def test_a_rollout_without_its_first_line_is_refused(project: Project, sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_text("\n".join(sample.read_text().splitlines()[1:]))

    with pytest.raises(ImportRefused, match="no session_meta line with an id"):
        import_path(project, path)


#: The tokens of a compaction, and the total of the sample without and with them.
SUMMARY = {"input_tokens": 30_000, "cached_input_tokens": 0, "output_tokens": 7, "total_tokens": 30_007}
TOTAL = {
    "input_tokens": 82_056,
    "cached_input_tokens": 44_992,
    "output_tokens": 340,
    "reasoning_output_tokens": 53,
    "total_tokens": 82_396,
}
WITH_SUMMARY = {**TOTAL, "input_tokens": 112_056, "output_tokens": 347, "total_tokens": 112_403}
ESTIMATE = {"total_tokens": 900}


def _count(total: dict[str, int], last: dict[str, int]) -> dict[str, Any]:
    info = {"total_token_usage": total, "last_token_usage": last}
    return {"type": "event_msg", "payload": {"type": "token_count", "info": info}}


def _record(response_id: str, usage: dict[str, int]) -> dict[str, Any]:
    return {"type": "token_usage_record", "payload": {"response_id": response_id, "usage": usage}}


RECORD = _record("r2", SUMMARY)
COMPACTED = {"type": "compacted", "payload": {"message": "Summary", "compaction_response_id": "r2"}}
#: Lines about a compaction in several versions. An estimate of the remaining context repeats the total.
COMPACTIONS = {
    "a count": [_count(WITH_SUMMARY, SUMMARY), _count(WITH_SUMMARY, ESTIMATE), COMPACTED],
    "a record": [RECORD, COMPACTED, _count(TOTAL, ESTIMATE)],
    "a record and a count": [RECORD, _count(WITH_SUMMARY, SUMMARY), COMPACTED],
    "a record and a late count": [RECORD, COMPACTED, _count(WITH_SUMMARY, SUMMARY)],
}


@pytest.mark.parametrize("lines", COMPACTIONS.values(), ids=COMPACTIONS)
def test_the_tokens_of_a_compaction_count_once(
    project: Project, sample: Path, tmp_path: Path, lines: list[dict[str, Any]]
) -> None:
    """Its answer is not among the items. https://github.com/openai/codex/issues/47003"""
    path = tmp_path / "rollout.jsonl"
    path.write_text(sample.read_text())
    [run] = import_path(project, path).runs
    before = tokens_of(run)
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on"}]}
    more = [_record("r1", TOTAL), *lines, {"type": "response_item", "payload": said}]
    for count in range(1, len(more) + 1):
        path.write_text(sample.read_text().rstrip("\n") + "\n" + "\n".join(map(json.dumps, more[:count])))
        import_path(project, path)

    assert [after - old for after, old in zip(tokens_of(run), before, strict=True)] == [30_000, 7, 0, 0]
    assert "context.trimmed" in run.log.events.values_list("type", flat=True)
    assert run.messages.order_by("-position").values_list("role", flat=True)[0] == "user"
    # Imported at once, so that the tokens and the summary belong to one answer.
    [whole] = import_path(Project.objects.create(slug="whole", name="Whole"), path).runs
    assert tokens_of(whole) == tokens_of(run)
    answer = whole.messages.filter(role="assistant").order_by("-position")[0]
    assert [part["content"] for part in answer.content["parts"]] == ["Summary"]
    assert answer.content["usage"]["input_tokens"] == SUMMARY["input_tokens"]


CUMULATIVE = "public-cases/07-codex-cumulative-counts"


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("rollout-2026-01-22T16-40-00-e69eaccb-0909-59cc-9543-3bbf20dd7f01", [(1000, 50, 800, 0), (1500, 40, 1200, 0)]),
        # A total that decreases was reset.
        ("rollout-reset-e93c22c0-cacd-552f-9de3-82ab89d15777", [(1000, 100, 800, 40), (900, 60, 700, 20)]),
    ],
)
def test_usage_is_computed_from_cumulative_counts(
    project: Project, tmp_path: Path, name: str, calls: list[tuple[int, ...]]
) -> None:
    """Also if the file is imported line by line."""
    content = recording(f"{CUMULATIVE}/{name}.jsonl").read_text()
    path = tmp_path / f"{name}.jsonl"
    lines = content.splitlines(keepends=True)
    for count in range(5, len(lines) + 1):
        path.write_text("".join(lines[:count]))
        [run] = import_path(project, path).runs

    rows = run.turn_usages.filter(output_tokens__gt=0).order_by("step_number")
    columns = ("input_tokens", "output_tokens", "cache_read_tokens", "reasoning_tokens")
    assert list(rows.values_list(*columns)) == calls
    run.refresh_from_db()
    assert (run.input_tokens, run.output_tokens) == tuple(sum(call[index] for call in calls) for index in (0, 1))
    assert run.cost_usd is not None
