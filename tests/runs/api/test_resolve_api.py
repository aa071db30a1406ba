"""POST …/tool-calls/{call}/resolve: record the outcome of a call whose outcome is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from agentops.accounts.models import AuditEntry
from runs.models import AgentRun, AgentRunToolCall
from tests.support.api import Program, counts, pointers, program, refused
from tests.support.factories import drive, key_prefix, make_project, make_waiting
from tests.support.run_checks import check

UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def alpha() -> Program:
    return program(make_project("alpha"))


@pytest.fixture
def run(alpha: Program) -> AgentRun:
    return make_waiting(alpha.project)


def lost_call(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.get(run=run, status="unknown")


def address(run: AgentRun, call: object = None) -> str:
    return f"/{run.pk}/tool-calls/{call or lost_call(run).pk}/resolve"


@pytest.mark.parametrize(
    ("body", "status", "output"),
    [
        ({"choice": "done", "output": "3 rows"}, "completed", "3 rows"),
        ({"choice": "done"}, "completed", "The call succeeded. Its output is not known."),
        ({"choice": "failed", "message": "no such table"}, "error", "no such table"),
        ({"choice": "failed", "message": None, "output": None}, "error", None),
    ],
    ids=["done", "done without output", "failed", "failed without a message"],
)
def test_the_run_continues_with_the_recorded_outcome(
    alpha: Program, run: AgentRun, body: dict[str, Any], status: str, output: str | None
) -> None:
    call = lost_call(run)
    answer = alpha.post(address(run), body)

    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["id"], shown["status"]) == (str(call.pk), status)
    assert output is None or shown["output"] == output
    assert shown == alpha.get(f"/{run.pk}/tool-calls/{call.pk}").json()
    assert alpha.get(f"/{run.pk}").json()["status"] == "queued"
    [entry] = AuditEntry.objects.filter(action="run.call_resolved")
    assert entry.actor == f"key:{key_prefix(alpha.headers)}"
    assert drive(run).status == "completed"
    check(run)


def test_retry_runs_the_call_again(alpha: Program, run: AgentRun) -> None:
    call = lost_call(run)
    shown = alpha.post(address(run), {"choice": "retry"}).json()

    assert (shown["status"], shown["result_message_id"]) == ("unknown", None)
    assert drive(run).status == "completed"
    call.refresh_from_db()
    assert (call.status, call.starts) == ("completed", 2)
    check(run)


def test_a_second_outcome_is_refused_and_names_the_first(alpha: Program, run: AgentRun) -> None:
    where = address(run)
    alpha.post(where, {"choice": "done"})
    another = program(alpha.project)
    before = counts()

    answer = another.post(where, {"choice": "retry"})

    assert refused(answer) == (409, "call_not_unknown")
    assert answer.json()["chosen"] == "done"
    assert answer.json()["call_status"] == "completed"
    assert answer.json()["detail"].endswith(" already resolved this call as done")
    assert alpha.post(where, {"choice": "done"}).status_code == 200  # the same caller may repeat its choice
    assert refused(alpha.post(where, {"choice": "done", "output": "else"})) == (409, "call_not_unknown")
    assert counts() == before


def test_a_repeat_with_the_idempotency_key_gets_the_stored_response(alpha: Program, run: AgentRun) -> None:
    where = address(run)
    first = alpha.post(where, {"choice": "done", "output": "x"}, Idempotency_Key="one")
    before = counts()
    again = alpha.post(where, {"choice": "done", "output": "x"}, Idempotency_Key="one")

    assert (again.status_code, again.content) == (200, first.content)
    assert again["Idempotent-Replayed"] == "true"
    assert counts() == before


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({}, "required", "/choice"),
        ({"choice": None}, "null", "/choice"),
        ({"choice": "maybe"}, "invalid_choice", "/choice"),
        ({"choice": "retry", "output": "x"}, "unknown_field", "/output"),
        ({"choice": "retry", "message": "x"}, "unknown_field", "/message"),
        ({"choice": "failed", "output": "x"}, "unknown_field", "/output"),
        ({"choice": "done", "by": "me"}, "unknown_field", "/by"),
        ({"choice": "failed", "message": " "}, "message_empty", "/message"),
        ({"choice": "done", "output": 3}, "invalid", "/output"),
    ],
    ids=str,
)
def test_an_invalid_outcome_is_refused(
    alpha: Program, run: AgentRun, body: dict[str, Any], code: str, pointer: str
) -> None:
    before = counts()
    answer = alpha.post(address(run), body)

    assert refused(answer) == (422, code)
    assert pointers(answer) == {pointer: code}
    assert counts() == before


def test_a_call_of_another_run_is_unknown(alpha: Program, run: AgentRun) -> None:
    other = make_waiting(alpha.project)

    for call in (UNKNOWN, lost_call(other).pk):
        assert refused(alpha.post(address(run, call), {"choice": "done"})) == (404, "tool_call_not_found")
    assert refused(alpha.post(address(run), None)) == (400, "empty_body")
    assert refused(alpha.post(address(run), {"choice": "done", "output": "x" * 200_001}))[0] in (413, 422)
