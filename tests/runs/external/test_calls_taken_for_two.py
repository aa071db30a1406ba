"""Calls with different names in events are joined if they are the same call, even if its run is being deleted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import pytest
from django.db import transaction

from agentops.accounts.models import Project
from runs.external import model_calls
from runs.external.import_runs import ImportReport, import_file, retry_conflicts
from runs.external.importers import formats
from runs.external.importers.base import ImportFile
from runs.external.model_calls import CallsChanged
from runs.models import AgentRun, ReportedCall, TurnUsage
from runs.upkeep.group_removal import RemovalRule, hide_group
from runs.upkeep.run_groups import run_groups_of
from tests.support.factories import make_project
from tests.support.recordings import FIRST, SECOND, check_run, import_path, run_of, session, used, used_by
from tests.support.timing import at_once
from timeline.models import Event

pytestmark = pytest.mark.django_db
#: Input and output tokens of a call.
CALL = (100, 10)


def uuid_of(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


@pytest.fixture
def project() -> Project:
    return make_project("calls")


def answers(*names: tuple[str, str], sent: int = CALL[0], owner: str = "", **fields: Any) -> list[dict[str, Any]]:
    """Return lines of answers, each with a message ID and the seed of its UUID."""
    lines = []
    for number, (message_id, line_id) in enumerate(names):
        usage = {"input_tokens": sent, "output_tokens": CALL[1]}
        message = {"role": "assistant", "id": message_id, "model": "claude-sonnet-4-5", "usage": usage}
        message |= {"content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn"}
        line = {"type": "assistant", "sessionId": uuid_of(owner), "uuid": uuid_of(line_id), "message": message}
        lines.append(
            {**line, "timestamp": f"2026-01-21T12:00:{number:02}Z", "requestId": f"req_{message_id}", **fields}
        )
    return lines


def import_lines(project: Project, folder: Path, name: str, lines: Sequence[dict[str, Any]]) -> ImportReport:
    path = folder / f"{uuid_of(name)}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return import_path(project, path)


def import_answers(project: Project, folder: Path, name: str, *names: tuple[str, str], **fields: Any) -> AgentRun:
    [run] = import_lines(project, folder, name, answers(*names, owner=name, **fields)).runs
    return run


def calls_of(project: Project) -> set[tuple[str, str]]:
    """Return the names of the calls, each with the call it was joined to."""
    return {(row.name, str(row.call)) for row in ReportedCall.objects.filter(project=project)}


def test_a_call_that_was_reported_before_it_was_joined(project: Project, tmp_path: Path) -> None:
    import_answers(project, tmp_path, "first", ("c", "c"))
    import_answers(project, tmp_path, "second", ("a", "a"))
    import_answers(project, tmp_path, "third", ("b", "b"))
    assert used(project)[2] == 3

    # Call b is the same as a, and c the same as b.
    import_answers(project, tmp_path, "fourth", ("b", "new"), ("a", "b"), ("c", "a"))

    assert used(project) == (*CALL, 1)
    assert used_by(run_of(project, uuid_of("first"))) == (*CALL, 1)
    assert len({call for _, call in calls_of(project)}) == 1


def test_a_call_joined_by_another_run_of_the_file(project: Project, tmp_path: Path) -> None:
    import_answers(project, tmp_path, "first", ("c", "c"))
    import_answers(project, tmp_path, "second", ("a", "a"))
    report = import_lines(
        project,
        tmp_path,
        "none",
        [*answers(("a", "new"), owner="third"), *answers(("a", "c"), owner="fourth")],
    )

    assert len(report.runs) == 2
    assert used(project) == (*CALL, 1)


def test_one_event_joins_no_calls_with_different_tokens(project: Project, tmp_path: Path) -> None:
    import_answers(project, tmp_path, "first", ("a", "a"))
    import_answers(project, tmp_path, "second", ("b", "b"), sent=700)

    import_answers(project, tmp_path, "third", ("a", "b"), ("c", "c"))

    assert used(project) == (CALL[0] + 700 + CALL[0], 3 * CALL[1], 3)
    assert not Event.objects.filter(log__project=project, type="llm.usage.moved").exists()


def test_the_note_says_how_many_calls_are_counted_elsewhere(project: Project, tmp_path: Path) -> None:
    import_answers(project, tmp_path, "first", ("a", "a"))
    second = import_answers(project, tmp_path, "second", ("b", "b"), ("d", "d"))

    import_answers(project, tmp_path, "third", ("a", "b"), ("c", "c"))

    moved = Event.objects.get(log=second.pk, type="llm.usage.moved")
    assert (moved.payload["calls"], moved.payload["counted"]) == (1, "there")
    assert used(project)[2] == 3
    second.refresh_from_db()
    check_run(second)


def hide(run: AgentRun) -> None:
    """Hide the run, which is the first step of retention."""
    [group] = run_groups_of([run.pk])
    assert hide_group(group, RemovalRule(reason="age", by="test", may_remove=lambda group, runs: True), Counter())


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_calls_of_a_run_deleted_during_an_import_are_counted_by_the_new_run(project: Project) -> None:
    import_path(project, session(FIRST))
    file = ImportFile.open(session(SECOND))
    first = run_of(project, FIRST)
    attempts: list[ImportReport] = []

    def progress(report: ImportReport) -> None:
        if not attempts and report.events:
            attempts.append(report)
            at_once(lambda number: hide(first), 1)

    def attempt() -> ImportReport:
        with transaction.atomic():
            return import_file(project, file, formats.find(file), by="test", progress=progress)

    [second] = retry_conflicts(attempt).runs

    assert attempts
    second.refresh_from_db()
    assert used_by(second) == (6_600, 220, 3)
    assert TurnUsage.objects.filter(run=second).count() == 3
    assert not Event.objects.filter(log=second.pk, payload__repeated=True).exists()
    check_run(second)


def test_message_ids_reused_by_a_proxy_identify_no_call(project: Project, tmp_path: Path) -> None:
    bare: dict[str, Any] = {"requestId": None}
    first = import_answers(project, tmp_path, "first", ("msg_1", "one"), **bare)
    import_answers(project, tmp_path, "second", ("msg_1", "two"), **bare, timestamp="2026-01-21T13:00:00Z")
    # Other lines of the same answer, so it is a copy.
    copy = import_answers(project, tmp_path, "third", ("msg_1", "three"), ("msg_2", "four"), **bare)

    assert used(project) == (3 * CALL[0], 3 * CALL[1], 3)
    assert [used_by(run)[2] for run in (first, copy)] == [1, 1]


def test_a_message_id_alone_identifies_no_call(project: Project, tmp_path: Path) -> None:
    for name in ("first", "second"):
        import_answers(project, tmp_path, name, ("msg_1", name), requestId=None, timestamp=None)

    assert used(project)[2] == 2


def test_calls_move_only_from_the_run_that_counts_them(project: Project, tmp_path: Path) -> None:
    first = import_answers(project, tmp_path, "first", ("a", "a"), ("b", "b"))
    second, third = (import_answers(project, tmp_path, name, (name, name)) for name in ("second", "third"))
    steps = dict.fromkeys(TurnUsage.objects.filter(run=first).values_list("call", flat=True), 1)
    before = calls_of(project)

    with pytest.raises(CallsChanged), transaction.atomic():
        model_calls.move(third, steps, second.pk)

    assert calls_of(project) == before
    assert used_by(run_of(project, uuid_of("first")))[2] == 2


def test_a_move_reports_how_many_calls_were_counted(project: Project, tmp_path: Path) -> None:
    first = import_answers(project, tmp_path, "first", ("a", "a"))
    second = import_answers(project, tmp_path, "second", ("c", "c"))
    [call] = TurnUsage.objects.filter(run=first).values_list("call", flat=True)
    assert call is not None
    unused = uuid4()
    ReportedCall.objects.create(project=project, name="codex:unused", call=unused, run=first)

    model_calls.move(second, {call: 1, unused: 1}, first.pk)

    assert used(project)[2] == 2
    moved = Event.objects.filter(log__project=project, type="llm.usage.moved")
    assert {(event.log_id, event.payload["calls"]) for event in moved} == {(first.pk, 1), (second.pk, 1)}


def test_the_note_counts_each_part_of_an_answer_that_grew(project: Project, tmp_path: Path) -> None:
    import_answers(project, tmp_path, "first", ("a", "a"))
    [line] = answers(("b", "b"), owner="second")
    line["message"]["usage"]["output_tokens"] = 4
    import_lines(project, tmp_path, "second", [line])
    rest = {**line, "uuid": uuid_of("rest"), "parentUuid": line["uuid"]}
    rest["message"] = {**line["message"], "usage": {"input_tokens": CALL[0], "output_tokens": CALL[1]}}
    import_lines(project, tmp_path, "second", [line, rest])
    second = run_of(project, uuid_of("second"))
    assert used_by(second) == (*CALL, 2)

    import_answers(project, tmp_path, "third", ("a", "b"), ("c", "c"))

    assert used(project) == (2 * CALL[0], 2 * CALL[1], 2)
    assert Event.objects.get(log=second.pk, type="llm.usage.moved").payload["calls"] == 2
