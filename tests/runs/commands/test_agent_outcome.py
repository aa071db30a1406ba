"""`agent outcome`: resolve a call with an unknown outcome on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from runs.models import AgentRun, AgentRunToolCall
from tests.support.factories import drive, make_waiting
from timeline import log
from timeline.models import Event

Command = Callable[..., str]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run() -> AgentRun:
    return make_waiting()


def lost_call(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.get(run=run, status="unknown")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--done", "3 rows"], "completed", "continues with this result"),
        (["--failed", "no such table"], "error", "continues with this result"),
        (["--retry"], "unknown", "runs the call again"),
    ],
    ids=["done", "failed", "retry"],
)
def test_a_resolved_call_continues_the_run(
    run: AgentRun, command: Command, words: list[str], status: str, told: str
) -> None:
    call = lost_call(run)

    assert command("agent", "outcome", str(run.pk), str(call.pk), *words) == (
        f"{run.pk} queued (tool call resolved); {told}\n"
    )
    call.refresh_from_db()
    assert call.status == status
    [word] = [event for event in log.read(run.pk) if event.type == "tool.outcome_resolved"]
    assert word.payload["by"].startswith("cli:")
    assert drive(run).status == "completed"


def test_a_call_can_be_named_by_the_call_id_of_the_model(run: AgentRun, command: Command) -> None:
    shown = json.loads(command("agent", "outcome", str(run.pk), lost_call(run).call_id, "--done", "", "--json"))

    assert (shown["id"], shown["status"]) == (str(run.pk), "queued")


def test_invalid_outcomes_are_refused(run: AgentRun, refused: Any, command: Command) -> None:
    call, events = str(lost_call(run).pk), Event.objects.count()

    assert refused("agent", "outcome", str(run.pk), "nothing", "--retry")[0] == 3
    assert refused("agent", "outcome", str(run.pk), call, "--failed", " ")[0] == 7
    for words in ([], ["--retry", "--done", "x"]):
        with pytest.raises(Exception, match=r"required|not allowed"):
            command("agent", "outcome", str(run.pk), call, *words)
    assert Event.objects.count() == events
    command("agent", "outcome", str(run.pk), call, "--done", "x")
    code, line = refused("agent", "outcome", str(run.pk), call, "--failed", "y")
    assert (code, "already resolved this call as done" in line) == (5, True)
