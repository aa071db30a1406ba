"""Forks through the API: a new run from a checkpoint, idempotent requests, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agentops.accounts.models import AuditEntry
from runs.models import AgentRun, Checkpoint
from tests.support.api import Program, counts, endless_run, pointers, program, refused
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.run_checks import check
from timeline.models import Event

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"


@pytest.fixture
def alpha(db: None) -> Program:
    return program(make_project("alpha"))


@pytest.fixture
def run(alpha: Program, tmp_path: Path) -> AgentRun:
    """Return a run paused after three steps."""
    return drive(endless_run(tmp_path, max_steps=3, project=alpha.project))


def test_a_fork_starts_a_new_run(alpha: Program, run: AgentRun) -> None:
    answer = alpha.post(f"/{run.pk}/fork", {"step": 2, "message": "Another way.", "agent": {"max_steps": 1}})

    told = answer.json()
    assert answer.status_code == 201
    assert answer["Location"] == f"/api/projects/alpha/agent-runs/{told['id']}"
    assert (
        told.items()
        >= {
            "status": "queued",
            "forked_from": str(run.pk),
            "forked_at_step": 2,
            "step_base": 2,
            "step_count": 2,
            "max_steps": 1,
            "root_run_id": told["id"],
            "resumed_from": None,
            "prompt": "Another way.",
            "message_count": 1,
        }.items()
    )
    new = drive(AgentRun.objects.get(pk=told["id"]))
    assert (new.status, new.step_count) == ("paused", 3)
    check(new)
    [entry] = AuditEntry.objects.filter(action="run.forked")
    assert (entry.object_id, entry.after["forked_from"], entry.after["edited"]) == (
        str(new.pk),
        str(run.pk),
        ["max_steps"],
    )
    assert alpha.get(f"/{run.pk}").json()["status"] == "paused"


def test_a_checkpoint_can_be_named_by_its_id(alpha: Program, run: AgentRun) -> None:
    place = Checkpoint.objects.get(run=run, step_number=1)

    assert alpha.post(f"/{run.pk}/fork", {"checkpoint": str(place.pk)}).json()["forked_at_step"] == 1


def test_an_idempotency_key_creates_one_fork(alpha: Program, run: AgentRun) -> None:
    answers = [alpha.post(f"/{run.pk}/fork", {"step": 1}, Idempotency_Key="f-1") for _ in range(3)]

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert AgentRun.objects.filter(forked_from=run).count() == 1
    assert refused(alpha.post(f"/{run.pk}/fork", {"step": 2}, Idempotency_Key="f-1"))[0] in {409, 422}


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({}, "where_to_fork", ""),
        ({"step": 1, "checkpoint": UNKNOWN}, "where_to_fork", ""),
        ({"step": 99}, "no_checkpoint", "/step"),
        ({"checkpoint": UNKNOWN}, "no_checkpoint", "/checkpoint"),
        ({"step": 0}, "min_value", "/step"),
        ({"step": "1"}, "invalid", "/step"),
        ({"step": True}, "invalid", "/step"),
        ({"step": 1, "message": " "}, "message_empty", "/message"),
        ({"step": 1, "steps": 2}, "unknown_field", "/steps"),
        ({"step": 1, "agent": {"tools": []}}, "unknown_field", "/agent/tools"),
        ({"step": 1, "agent": {"model": ""}}, "invalid_agent", "/agent/model"),
        ({"step": 1, "agent": {"max_steps": 10**7}}, "invalid_agent", "/agent/max_steps"),
        ({"step": 1, "agent": {"settings": []}}, "not_a_dict", "/agent/settings"),
        ({"step": 1, "agent": []}, "invalid", "/agent"),
    ],
    ids=str,
)
def test_an_invalid_fork_is_refused_with_the_field(
    alpha: Program, run: AgentRun, body: dict[str, Any], code: str, pointer: str
) -> None:
    before = counts()

    answer = alpha.post(f"/{run.pk}/fork", body)

    assert refused(answer) == (422, code)
    assert pointers(answer) == {pointer: code}
    assert counts() == before


def test_the_limit_of_total_steps_and_unknown_runs_are_refused(alpha: Program, run: AgentRun, settings: Any) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 3

    assert refused(alpha.post(f"/{run.pk}/fork", {"step": 3})) == (409, "max_total_steps_exceeded")
    assert refused(alpha.post(f"/{UUID(UNKNOWN)}/fork", {"step": 3})) == (404, "run_not_found")


def test_an_agent_may_have_more_steps_than_the_limit_of_total_steps(alpha: Program, settings: Any) -> None:
    """Its runs and their forks stop at the limit."""
    done = drive(make_run(make_agent(alpha.project, max_steps=settings.AGENTOPS_MAX_TOTAL_STEPS + 100)))

    answer = alpha.post(f"/{done.pk}/fork", {"step": 1})

    assert (answer.status_code, answer.json()["max_steps"]) == (201, settings.AGENTOPS_MAX_TOTAL_STEPS)


def test_an_ended_run_can_be_forked_with_another_model(alpha: Program) -> None:
    done = drive(make_run(make_agent(alpha.project)))

    told = alpha.post(f"/{done.pk}/fork", {"step": 1, "agent": {"model": "claude-code-7e"}}).json()

    new = AgentRun.objects.get(pk=told["id"])
    assert (new.agent_config["model"], done.agent_config["model"]) == ("claude-code-7e", "claude-code-5c")
    created = Event.objects.filter(log=new.pk).order_by("seq").first()
    assert created is not None
    assert created.payload["changed"] == ["model"]


@pytest.mark.parametrize("changed", ["root", "http_fetch_allow", "budgets"])
def test_a_key_cannot_change_the_permissions_of_tools(alpha: Program, run: AgentRun, changed: str) -> None:
    """Settings of an agent require the permission to configure agents."""
    before = AgentRun.objects.count()
    answer = alpha.post(f"/{run.pk}/fork", {"step": 1, "agent": {"settings": {changed: {}}}})

    assert (answer.status_code, answer.json()["code"]) == (403, "scope_required")
    assert AgentRun.objects.count() == before
