"""Approvals in sessions: a person, a rule or a hook decides about a call, and no program waits for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runs.actions import approvals
from runs.lifecycle import inbox
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall
from tests.support.factories import drive
from tests.support.programs.stub_cli import StubProgram
from tests.support.run_checks import check
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
MakeRun = Callable[..., AgentRun]
WRITE = {"tool": "Write", "input": {"path": "a.txt"}, "output": "wrote {path}"}


def decide(run: AgentRun, decision: Decision) -> AgentRun:
    call = AgentRunToolCall.objects.filter(run=run).latest("id")
    approvals.decide("user:oscar", run, call.pk, decision)
    return drive(run)


def calls_of(run: AgentRun) -> list[tuple[str, Any]]:
    return [(call.status, call.output) for call in AgentRunToolCall.objects.filter(run=run).order_by("id")]


def test_an_approved_call_runs_when_the_program_requests_it_again(session_run: MakeRun, program: StubProgram) -> None:
    run = drive(session_run(WRITE, WRITE, {"text": "Written."}))
    assert (run.status, run.status_reason, run.lease_owner) == ("waiting", "approval", None)
    assert program.ledger == []

    run = decide(run, Decision(approves=True))

    assert (run.status, run.result, program.ledger) == ("completed", "Written.", ["Write"])
    [(first, told), second] = calls_of(run)
    assert (first, second) == ("error", ("completed", "wrote a.txt"))
    assert program.heard[1] == f"Write: {told}\n\ncontinue"
    check(run)


def test_an_approval_is_valid_once_and_for_the_same_arguments(session_run: MakeRun, program: StubProgram) -> None:
    other = {**WRITE, "input": {"path": "b.txt"}}
    run = decide(drive(session_run(WRITE, other, WRITE, WRITE, {"text": "x"})), Decision(approves=True))
    assert (run.status_reason, program.ledger) == ("approval", [])

    run = decide(run, Decision(approves=False))

    assert (run.status_reason, program.ledger) == ("approval", ["Write"])


def test_the_program_gets_the_reason_of_a_denial(session_run: MakeRun, program: StubProgram) -> None:
    run = drive(session_run(WRITE, {"text": "I leave it."}))

    run = decide(run, Decision(approves=False, message="Use the copy."))

    assert (run.status, run.result, program.ledger) == ("completed", "I leave it.", [])
    assert program.heard[1] == "Write: A person denied this call, so it was not run. Use the copy.\n\ncontinue"


def test_the_call_runs_with_the_approver_s_arguments(session_run: MakeRun, program: StubProgram) -> None:
    again = {**WRITE, "input": {"path": "copy.txt"}}
    run = drive(session_run(WRITE, again, {"text": "Written."}))

    run = decide(run, Decision(approves=True, arguments={"path": "copy.txt"}))

    assert calls_of(run)[1] == ("completed", "wrote copy.txt")
    assert 'with these arguments: {"path":"copy.txt"}' in program.heard[1]


def test_a_rule_allows_a_call_that_the_program_would_ask_about(session_run: MakeRun, program: StubProgram) -> None:
    rules = {"approvals": [{"tools": "Write", "action": "auto"}, {"tools": "Bash", "action": "deny"}]}
    bash = {"tool": "Bash", "input": {"command": "rm"}, "output": "ran"}
    run = drive(session_run(WRITE, bash, {"text": "Done."}, policies=rules))

    assert (run.status, program.ledger) == ("completed", ["Write"])
    assert [status for status, _ in calls_of(run)] == ["completed", "denied"]
    assert len(program.starts) == 1


OPTIONS = [{"label": "Postgres", "description": "For many writers."}, {"label": "SQLite"}]
ASKED = {"question": "Which database?", "header": "Database", "options": OPTIONS, "multiSelect": False}
ASK = {"tool": "AskUserQuestion", "input": {"questions": [ASKED]}, "output": "unanswered"}


def test_a_question_of_the_program_waits_for_a_person_without_a_worker(
    session_run: MakeRun, program: StubProgram
) -> None:
    run = drive(session_run(ASK, {"text": "Postgres it is."}))
    assert (run.status, run.status_reason, run.lease_owner) == ("waiting", "input", None)
    [asked] = Event.objects.filter(log=run.pk, type="run.waiting")
    assert asked.payload["question"] == "Which database?\n- Postgres: For many writers."
    assert asked.payload["choices"] == ["Postgres", "SQLite"]

    inbox.reply(run.pk, "Postgres", by="ann")
    run = drive(run)

    assert (run.status, run.result) == ("completed", "Postgres it is.")
    assert program.heard[1] == "AskUserQuestion: Postgres\n\ncontinue"
    assert calls_of(run) == [("completed", "Postgres")]
    check(run)


def test_a_question_does_not_block_the_other_calls(session_run: MakeRun, program: StubProgram) -> None:
    read = {"tool": "Read", "input": {"path": "a"}, "output": "read {path}"}
    both = {**ASKED, "options": [], "question": "And why?"}
    run = drive(session_run({"tools": [read, {**ASK, "input": {"questions": [ASKED, both]}}]}, {"text": "Done."}))

    assert (run.status_reason, program.ledger) == ("input", ["Read"])
    [asked] = Event.objects.filter(log=run.pk, type="run.waiting")
    assert asked.payload["question"] == "Which database?\n- Postgres: For many writers.\n- SQLite\n\nAnd why?"
    assert not asked.payload.get("choices")
