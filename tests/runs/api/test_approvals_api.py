"""`…/approvals`: list and decide the calls that wait for a person."""

from __future__ import annotations

import pytest

from agentops.accounts.models import AuditEntry
from runs.models import AgentRun, AgentRunToolCall, Approval
from tests.support.api import Program, pointers, program, refused
from tests.support.engine import make_asking
from tests.support.factories import drive, key_prefix, make_awaiting_approval, make_project, make_waiting
from tests.support.run_checks import check

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def alpha() -> Program:
    return program(make_project("alpha"))


@pytest.fixture
def run(alpha: Program) -> AgentRun:
    return make_awaiting_approval(alpha.project)


def address(run: AgentRun) -> str:
    return f"/{run.pk}/approvals/{Approval.objects.get(run=run).call_id}"


def listed(alpha: Program, query: str = "") -> list[dict[str, object]]:
    answer = alpha.client.get(f"/api/projects/alpha/approvals{query}", headers=alpha.headers)
    assert answer.status_code == 200
    results: list[dict[str, object]] = answer.json()["results"]
    return results


def test_a_program_can_list_and_approve_calls(alpha: Program, run: AgentRun) -> None:
    [row] = listed(alpha, "?state=pending")
    call = AgentRunToolCall.objects.get(run=run, pk=str(row["call_id"]))
    assert (row["run_id"], row["arguments"], row["tool_name"]) == (str(run.pk), call.input, call.tool_name)
    assert (row["reason"], row["requested_by"], row["state"]) == ("It reads files.", "rule", "pending")

    answer = alpha.post(address(run), {"decision": "approve", "always": True})

    assert answer.status_code == 200
    by = f"key:{key_prefix(alpha.headers)}"
    assert (answer.json()["state"], answer.json()["decided_by"], answer.json()["always"]) == ("approved", by, True)
    assert (listed(alpha, "?state=pending"), len(listed(alpha))) == ([], 1)
    assert AuditEntry.objects.get(action="run.approval_decided").actor == by
    check(drive(run))


def test_the_list_contains_every_kind_of_wait_and_each_can_be_resolved(alpha: Program, run: AgentRun) -> None:
    asking, lost = make_asking(alpha.project), make_waiting(alpha.project)
    make_asking(make_project("other"))
    rows = listed(alpha, "?state=pending")
    assert [(row["kind"], row["run_id"]) for row in rows] == [
        ("unknown_outcome", str(lost.pk)),
        ("question", str(asking.pk)),
        ("approval", str(run.pk)),
    ]
    outcome, question, approval = rows
    assert len({frozenset(row) for row in rows}) == 1
    assert (question["tool_name"], question["arguments"]) == ("ask_user", {"question": "Which one?"})
    assert (approval["expires_at"] is None, question["expires_at"], outcome["expires_at"]) == (False, None, None)
    assert all(row["created_at"] for row in rows)
    assert [row["id"] for row in listed(alpha, "?kind=question,unknown_outcome")] == [outcome["id"], question["id"]]
    assert listed(alpha, f"?run_id={lost.pk}") == [outcome]
    assert [row["kind"] for row in listed(alpha, "?state=approved,pending")] == [row["kind"] for row in rows]

    assert refused(alpha.post(f"/{asking.pk}/approvals/{question['call_id']}", {"decision": "approve"}))[0] == 409
    assert alpha.post(f"/{asking.pk}/commands", {"type": "reply", "message": "This."}).status_code == 202
    resolve = f"/{lost.pk}/tool-calls/{outcome['call_id']}/resolve"
    assert alpha.post(resolve, {"choice": "done", "output": "42"}).status_code == 200
    assert listed(alpha, "?state=pending") == [approval]
    check(drive(asking))


def test_a_second_decision_is_refused_and_names_the_first(alpha: Program, run: AgentRun) -> None:
    where = address(run)
    assert alpha.post(where, {"decision": "deny", "message": "No."}).json()["message"] == "No."
    answer = alpha.post(where, {"decision": "approve"})
    assert refused(answer) == (409, "approval_decided")
    problem = answer.json()
    assert (problem["state"], problem["by"]) == ("denied", f"key:{key_prefix(alpha.headers)}")
    assert problem["by"] in problem["detail"]
    assert alpha.post(where, {"decision": "deny", "message": "No."}).status_code == 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/decision"),
        ({"decision": "maybe"}, "/decision"),
        ({"decision": "approve", "arguments": [1]}, "/arguments"),
        ({"decision": "deny", "arguments": {}}, "/decision"),
        ({"decision": "deny", "always": True}, "/decision"),
        ({"decision": "approve", "tool_name": "rm"}, "/tool_name"),
    ],
)
def test_an_invalid_decision_is_refused(alpha: Program, run: AgentRun, body: dict[str, object], pointer: str) -> None:
    answer = alpha.post(address(run), body)
    assert answer.status_code == 422
    assert pointer in (pointers(answer) or [answer.json().get("pointer")])
    assert Approval.objects.get(run=run).state == "pending"
