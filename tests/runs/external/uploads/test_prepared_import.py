"""Imports of large files: prepared while other transactions write, stored at once, and equal to direct imports."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum

from agentops.accounts.models import Project
from runs.external.import_runs import ImportReport
from runs.external.importers import formats
from runs.external.importers.base import ImportFile
from runs.external.prepared_import import PREPARED_FROM, prepared
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from tests.support.factories import make_project
from tests.support.recordings import check_run, counts
from timeline import log
from timeline.events.notice import ContextTrimmed
from timeline.log import Entry
from timeline.models import Event, Source

pytestmark = pytest.mark.django_db(transaction=True)
LONG = "word " * 500


@pytest.fixture
def project(transactional_db: None) -> Project:
    return make_project("alpha")


def line(number: int, role: str, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
    message = {"role": role, "id": f"msg_{number}", "content": list(blocks)}
    return {"type": role, "uuid": f"u{number}", "sessionId": "s", "timestamp": at, "message": message, **more}


def session(turns: int) -> list[dict[str, Any]]:
    """Return lines of a session: each turn has a tool call and its result. The first call starts a sub-agent."""
    lines = []
    for turn in range(turns):
        call = {"type": "tool_use", "id": f"c{turn}", "name": "Task", "input": {"prompt": f"Look {turn}"}}
        result = {"type": "tool_result", "tool_use_id": f"c{turn}", "content": f"{turn} {LONG}"}
        lines += [line(3 * turn, "user", {"type": "text", "text": f"{turn} {LONG}"})]
        lines += [line(3 * turn + 1, "assistant", call), line(3 * turn + 2, "user", result)]
    asked = {"type": "text", "text": "Look 0"}
    of_agent: dict[str, Any] = {"isSidechain": True, "agentId": "a1"}
    return [*lines, line(1000, "user", asked, **of_agent), line(1001, "assistant", asked, **of_agent)]


def written(path: Path, lines: Iterable[dict[str, Any]]) -> ImportFile:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    file = ImportFile.open(path)
    assert file.stored.size > PREPARED_FROM
    return file


def bring(project: Project, file: ImportFile, **more: Any) -> ImportReport:
    with prepared(project, file, formats.find(file), by="test", **more) as store, transaction.atomic():
        report = store()
    for run in report.runs:
        check_run(run)
    return report


def rows(project: Project) -> list[Any]:
    """Return the rows written by an import, without IDs and storage times."""
    events = Event.objects.filter(log__project=project).order_by("log__run__external_id", "seq")
    messages = AgentRunMessage.objects.filter(run__project=project).order_by("run__external_id", "position")
    calls = AgentRunToolCall.objects.filter(run__project=project).order_by("run__external_id", "call_id")
    runs = AgentRun.objects.filter(project=project).order_by("external_id")
    return [
        list(events.values_list("seq", "type", "ts", "event_id", "step")),
        list(messages.values_list("position", "role", "step_number", "created_at")),
        list(calls.values_list("call_id", "status", "output", "child_run__external_id")),
        list(runs.values_list("external_id", "title", "status", "step_count", "parent_run__external_id")),
    ]


@pytest.mark.slow
def test_a_prepared_import_writes_the_same_rows_as_a_direct_one(project: Project, tmp_path: Path) -> None:
    first, longer = session(50), session(60)
    for part in (first, longer, longer):
        report = bring(project, written(tmp_path / "s.jsonl", part))
    assert (report.events, report.new_runs) == (0, 0)

    other = make_project("beta")
    with transaction.atomic():
        for part in (first, longer):
            bring(other, written(tmp_path / "s.jsonl", part))

    assert rows(project) == rows(other)
    assert AgentRunToolCall.objects.get(run__project=project, call_id="c0").child_run is not None


@pytest.mark.slow
def test_others_can_write_during_preparation_and_see_nothing_of_the_import(project: Project, tmp_path: Path) -> None:
    seen: list[int] = []

    def write() -> None:
        try:
            make_project(f"made-{len(seen)}")
            seen.append(AgentRun.objects.count())
        finally:
            connection.close()

    def progress(report: ImportReport) -> None:
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()

    bring(project, written(tmp_path / "s.jsonl", session(60)), progress=progress)

    assert len(seen) > 1
    assert set(seen) == {0}
    assert counts(project)["runs"] == 2


def test_a_failed_import_leaves_nothing_and_can_be_repeated(project: Project, tmp_path: Path) -> None:
    def fail(report: ImportReport) -> None:
        raise InterruptedError

    file = written(tmp_path / "s.jsonl", session(60))
    with pytest.raises(InterruptedError):
        bring(project, file, progress=fail)
    with prepared(project, file, formats.find(file), by="test") as store, transaction.atomic():
        store()
        transaction.set_rollback(True)

    assert counts(project)["runs"] == 0
    assert bring(project, file).new_runs == 2


def test_a_run_changed_during_preparation_keeps_both_changes(project: Project, tmp_path: Path) -> None:
    [run, _] = bring(project, written(tmp_path / "s.jsonl", session(50))).runs
    longer = written(tmp_path / "s.jsonl", session(60))

    with prepared(project, longer, formats.find(longer), by="test") as store:
        with transaction.atomic():
            log.append(run.pk, [Entry(ContextTrimmed())], source=Source.INGEST)
        with transaction.atomic():
            report = store()

    assert (report.new_runs, report.events > 20) == (0, True)
    seqs = list(log.events_of(run.pk).values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))
    assert log.events_of(run.pk).filter(type="context.trimmed").count() == 1


def test_a_large_session_is_the_parent_of_a_sub_agent_imported_before(project: Project, tmp_path: Path) -> None:
    early = tmp_path / "agent-a7.jsonl"
    asked = line(2000, "user", {"type": "text", "text": "One"}, isSidechain=True, agentId="a7")
    early.write_text(json.dumps(asked) + "\n")
    [child] = bring(project, ImportFile.open(early)).runs

    parent, *_ = bring(project, written(tmp_path / "session.jsonl", session(60))).runs

    child.refresh_from_db()
    assert (parent.external_id, child.parent_run) == ("claude-code:s", parent)
    check_run(child)


def test_the_calls_of_a_copy_are_counted_once(project: Project, tmp_path: Path) -> None:
    usage = {"input_tokens": 100, "output_tokens": 10}
    lines = session(60)
    for one in lines:
        one["message"] |= {"usage": usage, "model": "claude-sonnet-4-5"} if one["type"] == "assistant" else {}
    more = [line(2_000, "user", {"type": "text", "text": "On"})]
    more += [line(2_001, "assistant", {"type": "text", "text": "Yes"})]
    more[1]["message"] |= {"usage": usage, "model": "claude-sonnet-4-5"}
    bring(project, written(tmp_path / "s.jsonl", lines))
    copy = [{**one, "sessionId": "t"} for one in [*lines, *more]]
    for _ in range(2):
        bring(project, written(tmp_path / "t.jsonl", copy))

    sums = AgentRun.objects.filter(project=project).aggregate(Sum("input_tokens"), Sum("output_tokens"))
    assert sums == {"input_tokens__sum": 62 * 100, "output_tokens__sum": 62 * 10}
    fork = AgentRun.objects.get(project=project, external_id="claude-code:t")
    assert (fork.forked_from, fork.title, fork.input_tokens) == (
        AgentRun.objects.get(project=project, external_id="claude-code:s"),
        "On",
        100,
    )
