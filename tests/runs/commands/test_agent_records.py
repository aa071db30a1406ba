"""What a run left behind, and what runs are started with: `agent messages`, `calls`, `errors` and `defs`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from runs.models import Agent, AgentRun, RunError
from tests.support.factories import drive
from tests.support.factories import make_run as make_any_run
from tests.support.redact_samples import TOKENS

Command = Callable[..., str]


@pytest.fixture
def played(agent: Agent, transactional_db: None) -> AgentRun:
    return drive(make_any_run(agent))


def lines(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_messages(played: AgentRun, command: Command) -> None:
    told = json.loads(command("agent", "messages", str(played.pk), "--json"))

    assert [row["position"] for row in told] == [*range(1, played.messages.count() + 1)]
    assert {row["role"] for row in told} == set(played.messages.values_list("role", flat=True))
    newest = lines(command("agent", "messages", str(played.pk), "--limit", "2"))
    assert [line[0] for line in newest] == [str(row["position"]) for row in told[-2:]]


def test_calls(played: AgentRun, command: Command) -> None:
    told = json.loads(command("agent", "calls", str(played.pk)[:23], "--json"))

    assert len(told) == played.tool_calls.count() == 10
    assert {row["status"] for row in told} == set(played.tool_calls.values_list("status", flat=True))
    assert [row["step_number"] for row in told] == sorted(row["step_number"] for row in told)


def test_errors(played: AgentRun, command: Command) -> None:
    assert command("agent", "errors", str(played.pk)) == ""
    RunError.objects.create(
        run=played, step_number=2, context="llm", error_type="rate_limited", created_at=timezone.now(),
        message=f"slow down, {TOKENS['anthropic']()}", details="status_code: 429",
    )  # fmt: skip

    [[step, context, attempt, kind, message, details, _]] = lines(command("agent", "errors", str(played.pk)))
    assert (step, context, attempt, kind) == ("2", "llm", "0", "rate_limited")
    assert "sk-ant" not in message
    assert details == "status_code: 429"


def test_defs(agent: Agent, command: Command, refused: Any) -> None:
    [told] = json.loads(command("agent", "defs", "--project", "alpha", "--json"))

    assert (told["agent_id"], told["project"], told["version"]) == ("player", "alpha", 1)
    assert lines(command("agent", "defs"))[0][:2] == ["alpha", "player"]
    assert refused("agent", "defs", "--project", "nowhere")[0] == 3


@pytest.mark.parametrize("what", ["messages", "calls", "errors"])
def test_a_run_that_is_not_there(what: str, agent: Agent, refused: Any) -> None:
    assert refused("agent", what, "01a1f86c")[0] == 3
