"""Ends and pauses of runs: an error event before the last event, a summary, and a node in every event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pydantic_ai.messages import ToolCallPart

from runs.actions.resume import resume
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from tests.support.engine import DieAt, MakeScripted
from tests.support.factories import drive, make_run
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)


def last_two(run: AgentRun) -> list[tuple[str, str | None]]:
    return [(e.type, e.payload.get("error_type") or e.payload.get("reason")) for e in events(run)[-2:]]


# --- The error before the end ---------------------------------------------------------------------------------------


def test_a_run_at_its_step_limit_has_an_error_event(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=[["ledger_read"], ["ledger_read"]], max_steps=1))

    assert run.status == RunStatus.PAUSED
    assert last_two(run) == [("error", "error_max_turns"), ("run.paused", "max_steps")]
    check(run)


def test_a_run_that_cannot_be_loaded_has_an_error_event() -> None:
    run = make_run()
    AgentRun.objects.filter(pk=run.pk).update(agent_config=run.agent_config | {"provider": "gone"})

    run = drive(run)

    assert run.status == RunStatus.PAUSED
    assert last_two(run) == [("error", run.error_type), ("run.paused", "error")]


def test_a_run_stopped_by_the_repeat_guard_has_an_error_event(scripted: MakeScripted) -> None:
    def play(call: ModelCall) -> Iterable[Move]:
        yield ToolCallPart("ledger_read", {"n": 1}, f"c{call.number}")

    run = drive(scripted(play))

    assert run.status == RunStatus.STOPPED
    assert last_two(run) == [("error", "repeated_calls"), ("run.stopped", "repeated_calls")]


@pytest.mark.parametrize("action", ["fail", "resume", "escalate"])
def test_a_step_limit_that_a_policy_handles_has_an_error_event(scripted: MakeScripted, action: str) -> None:
    run = scripted(calls=[["ledger_read"], ["ledger_read"]], max_steps=1)
    config = run.agent_config | {"policies": {"on_error": {"match": ["max_turns"], "action": action}}}
    AgentRun.objects.filter(pk=run.pk).update(agent_config=config)

    run = drive(run)

    errors = [e.payload["error_type"] for e in events(run) if e.type == "error"]
    assert errors == ["error_max_turns"]
    check(run)


# --- The summary ----------------------------------------------------------------------------------------------------


def test_the_summary_is_the_first_paragraph_of_the_last_answer(scripted: MakeScripted) -> None:
    """The summary is one line of at most 500 characters."""
    run = drive(scripted(lambda call: ["\n\nAll of it\nis done.\n \nDetails follow."]))
    long = drive(scripted(lambda call: ["é" * 600]))

    assert run.summary == "All of it is done."
    assert (len(long.summary), long.summary[-2:]) == (500, "é…")
    assert events(run)[-1].payload["summary"] == run.summary


def test_the_done_tool_sets_the_summary(scripted: MakeScripted) -> None:
    """The argument `summary`, or else the first paragraph of `result`."""

    def play(**arguments: str) -> Any:
        return lambda call: ["Never mind this. ", ToolCallPart("done", arguments, "c1")]

    on_idle = {"on_idle": {"action": "nudge"}}
    runs = [
        scripted(play(result="One.\n\nTwo."), tools=["done"]),
        scripted(play(result="x", summary="y"), tools=["done"]),
    ]
    for run in runs:
        AgentRun.objects.filter(pk=run.pk).update(agent_config=run.agent_config | {"policies": on_idle})

    assert [drive(run).summary for run in runs] == ["One.", "y"]


def test_a_stopped_or_paused_run_has_a_summary(scripted: MakeScripted) -> None:
    """The summary comes from the last answer with text; an answer with only tool calls does not count."""

    def play(call: ModelCall) -> Iterable[Move]:
        yield from ["I look. " if call.number == 1 else "", ToolCallPart("ledger_read", {"n": call.number}, "c1")]

    paused = drive(scripted(play, max_steps=2))
    assert (paused.status, paused.summary) == (RunStatus.PAUSED, "I look.")

    unstarted = make_run()
    inbox.stop(unstarted.pk, by="oscar")
    unstarted.refresh_from_db()
    assert (unstarted.status, unstarted.summary) == (RunStatus.STOPPED, "")


def test_the_pages_and_the_api_show_the_summary(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda call: ["All is <done>."]))
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))

    for url in (f"/runs/{run.pk}", f"/p/{run.project.slug}/runs"):
        assert "<bdi>All is &lt;done&gt;.</bdi>" in client.get(url).content.decode()
    answer = client.get(f"/api/projects/{run.project.slug}/agent-runs/{run.pk}").json()
    assert answer["summary"] == "All is <done>."


# --- The node -------------------------------------------------------------------------------------------------------


def test_every_event_of_a_run_names_its_agent(scripted: MakeScripted, die_at: DieAt) -> None:
    """Including events of the web, of a recovering worker, and of the resumed run."""
    run = scripted(calls=[["ledger_read"], ["ledger_read"]], max_steps=1)
    assert die_at(run, "tool.marked_running")
    inbox.send(run.pk, "Go on.", by="oscar")
    new = resume(drive(run).pk, by="oscar").run

    told = [*events(run), *events(drive(new))]
    assert {e.source for e in told} >= {"web", "worker"}
    assert {e.node_id for e in told} == {run.agent_config["agent_id"]}
