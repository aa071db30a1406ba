"""Records of a run and agent definitions: `agent messages`, `calls`, `errors` and `defs`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from runs.external.ingest import Sender, record
from runs.models import Agent, AgentRun, RunError
from tests.support.factories import drive, make_person
from tests.support.factories import make_run as make_any_run
from tests.support.secret_samples import TOKENS

Command = Callable[..., str]


@pytest.fixture
def played(agent: Agent, transactional_db: None) -> AgentRun:
    return drive(make_any_run(agent))


def lines(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_messages_are_listed(played: AgentRun, command: Command) -> None:
    told = json.loads(command("agent", "messages", str(played.pk), "--json"))

    assert [row["position"] for row in told] == [*range(1, played.messages.count() + 1)]
    assert {row["role"] for row in told} == set(played.messages.values_list("role", flat=True))
    newest = lines(command("agent", "messages", str(played.pk), "--limit", "2"))
    assert [line[0] for line in newest] == [str(row["position"]) for row in told[-2:]]


def test_calls_are_listed(played: AgentRun, command: Command) -> None:
    told = json.loads(command("agent", "calls", str(played.pk)[:23], "--json"))

    assert len(told) == played.tool_calls.count() == 10
    assert {row["status"] for row in told} == set(played.tool_calls.values_list("status", flat=True))
    assert [row["step_number"] for row in told] == sorted(row["step_number"] for row in told)


def test_errors_are_listed(played: AgentRun, command: Command) -> None:
    assert {line[1] for line in lines(command("agent", "errors", str(played.pk)))} == {"Edit"}
    RunError.objects.create(
        run=played,
        step_number=2,
        context="llm",
        error_type="rate_limited",
        created_at=timezone.now(),
        message=f"slow down, {TOKENS['anthropic']()}",
        details="status_code: 429",
    )

    [*_, [step, context, attempt, kind, message, details, _]] = lines(command("agent", "errors", str(played.pk)))
    assert (step, context, attempt, kind) == ("2", "llm", "0", "rate_limited")
    assert "sk-ant" not in message
    assert details == "status_code: 429"


def test_the_listed_errors_equal_the_errors_on_the_page(played: AgentRun, command: Command) -> None:
    """Including errors of a runner's calls, which are not attempts. An error from two sources is listed once."""
    started = {"runId": "r1", "type": "run.started", "payload": {"agent": "coder"}}
    documents = [
        started,
        {"runId": "r1", "type": "error", "payload": {"errorType": "rate_limited", "error": "slow down"}},
        {"runId": "r1", "type": "tool.end", "payload": {"callId": "c", "toolName": "grep", "error": "no such file"}},
        {"runId": "r1", "type": "run.failed", "payload": {"errorType": "gave_up", "error": "too hard"}},
    ]
    assert [one.error for one in record(Sender(played.project, "key:test"), documents) if one.error] == []
    run = AgentRun.objects.get(external_id="r1")
    client = Client()
    client.force_login(make_person(run.project))
    page = client.get(f"/runs/{run.pk}/errors").content.decode()

    rows = json.loads(command("agent", "errors", str(run.pk), "--json"))

    assert [(row["context"], row["error_type"], row["message"]) for row in rows] == [
        ("runner", "rate_limited", "slow down"),
        ("grep", "error", "no such file"),
        ("run.failed", "gave_up", "too hard"),
    ]
    for row in rows:
        assert row["message"] in page
    assert len(json.loads(command("agent", "errors", str(run.pk), "--json", "--limit", "2"))) == 2


def test_definitions_are_listed(agent: Agent, command: Command, refused: Any) -> None:
    [told] = json.loads(command("agent", "defs", "--project", "alpha", "--json"))

    assert (told["agent_id"], told["project"], told["version"]) == ("player", "alpha", 1)
    assert lines(command("agent", "defs"))[0][:2] == ["alpha", "player"]
    assert refused("agent", "defs", "--project", "nowhere")[0] == 3


@pytest.mark.parametrize("what", ["messages", "calls", "errors"])
def test_an_unknown_run_exits_with_3(what: str, agent: Agent, refused: Any) -> None:
    assert refused("agent", what, "01a1f86c")[0] == 3
