"""Every billed model call is counted, also without an answer: in the totals and in separate figures."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from pydantic_ai.exceptions import ModelHTTPError

from agentops.accounts.models import Role
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, TurnUsage
from runs.pages.run import facts
from runs.providers.base import ModelCall
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted
from tests.support.factories import drive, make_person
from tests.support.run_checks import check, events
from tests.support.scripted_model import PIECE, Move

pytestmark = pytest.mark.django_db(transaction=True)


def client_of(run: AgentRun) -> Client:
    client = Client()
    client.force_login(make_person(run.project, Role.VIEWER))
    return client


def rows(run: AgentRun) -> list[tuple[int, int, str, bool, int]]:
    """Return step, attempt, outcome, completeness of the usage, and input tokens of each model call, in order."""
    found = TurnUsage.objects.filter(run=run).order_by("id")
    return list(found.values_list("step_number", "attempt", "outcome", "usage_complete", "input_tokens"))


def usage_of(run: AgentRun) -> dict[str, Any]:
    totals: dict[str, Any] = client_of(run).get(f"/api/projects/{run.project.slug}/agent-runs/{run.pk}/usage").json()
    return totals["totals"]


def test_an_interrupted_attempt_is_counted(scripted: MakeScripted) -> None:
    left = [ConnectionResetError("by peer"), ModelHTTPError(529, "m")]

    def play(_: ModelCall) -> Iterable[Move]:
        if len(left) == 2:
            yield PIECE
        if left:
            yield left.pop(0)
        yield "Done."

    run = drive(scripted(play))

    # The second attempt failed before any output, so it is not billed.
    assert rows(run) == [(1, 0, "abandoned", False, 100), (1, 2, "answered", True, 100)]
    assert (run.input_tokens, run.output_tokens) == (200, 20)
    totals = usage_of(run)
    assert (totals["model_calls"], totals["abandoned_calls"], totals["repeated_calls"]) == (2, 1, 0)
    assert (totals["abandoned_input_tokens"], totals["abandoned_output_tokens"]) == (100, 10)
    assert totals["incomplete_usage_calls"] == 1
    [abandoned, refused] = [event for event in events(run) if event.type == "llm.turn.abandoned"]
    assert (abandoned.payload["usage"], abandoned.payload["input_tokens"]) == ("partial", 100)
    assert "usage" not in refused.payload
    check(run)


def test_a_call_whose_answer_a_crash_lost_is_counted_as_repeated(
    scripted: MakeScripted, worker: Worker, die_at: DieAt
) -> None:
    """Its usage is unknown; the page says so, and no number is invented."""
    run = scripted(lambda _: ["Done."])
    # The answer had arrived but was not committed.
    assert die_at(run, "model.answered")
    run = drive(run, worker)

    assert rows(run) == [(1, 0, "lost", False, 0), (1, 0, "answered", True, 100)]
    totals = usage_of(run)
    assert (totals["repeated_calls"], totals["abandoned_calls"], totals["incomplete_usage_calls"]) == (1, 0, 1)
    page = client_of(run).get(f"/runs/{run.pk}").content.decode()
    assert "1 call repeated after a crash" in page
    assert "1 call with incomplete usage" in page
    check(run)


def test_a_rolled_back_answer_is_counted_as_repeated(scripted: MakeScripted, worker: Worker, die_at: DieAt) -> None:
    run = scripted(calls=[["ledger_idempotent"]])
    run.agent_config["policies"] = {"on_crash": "roll_back"}
    run.save()
    assert die_at(run, "turn.committed")
    run = drive(run, worker)

    assert [row[2] for row in rows(run)] == ["rolled_back", "answered", "answered"]
    totals = usage_of(run)
    assert (totals["repeated_calls"], totals["repeated_input_tokens"], totals["input_tokens"]) == (1, 100, 300)
    check(run)


def test_a_stopped_call_is_counted(scripted: MakeScripted) -> None:
    def stop() -> None:
        inbox.stop(run.pk, by="ann")
        connections.close_all()

    def play(_: ModelCall) -> Iterable[Move]:
        # In a separate thread, as in a web request: the model's event loop must not use the ORM.
        yield from [PIECE, threading.Thread(target=stop).start, 30.0]

    run = scripted(play)
    ended = drive(run)

    assert ended.status == "stopped"
    assert rows(run) == [(1, 0, "abandoned", False, 100)]
    check(run)


def test_a_killed_call_is_counted(scripted: MakeScripted, die_at: DieAt) -> None:
    run = scripted(lambda _: [PIECE])
    assert die_at(run, "model.before_call")
    run.refresh_from_db()
    transitions.kill(run, by="ann")
    assert rows(run) == [(1, 0, "abandoned", False, 0)]


def test_budgets_count_abandoned_calls(scripted: MakeScripted) -> None:
    left = [ConnectionResetError("by peer")] * 2

    def play(_: ModelCall) -> Iterable[Move]:
        yield PIECE
        if left:
            yield left.pop()
        yield "Done."

    run = drive(scripted(play, budgets={"tokens": 330}))
    assert run.input_tokens + run.output_tokens == 330
    warned = [event for event in events(run) if event.type == "budget.warning"]
    assert [event.payload["used"] for event in warned] == ["330"]


def test_the_page_shows_the_savings_of_the_prompt_cache(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda _: ["Done."]))
    TurnUsage.objects.filter(run=run).update(cache_saved_usd=Decimal("0.0123"))
    assert "prompt cache saved $0.0123" in client_of(run).get(f"/runs/{run.pk}").content.decode()
    assert usage_of(run)["cache_saved_usd"] == "0.01230000"
    # The first call writes the cache, which costs more.
    none = facts.DiscardedCalls()
    assert facts.Billing(none, none, 0, Decimal("-0.5"), calls=1, model_ms=1).cache_saving == "cost $0.5000 more so far"
    # A billing fact with notes takes the space of two facts.
    assert facts.Billing(none, none, 0, Decimal("-0.5"), calls=1, model_ms=1).has_notes
    assert facts.Billing(none, none, 1, None, calls=1, model_ms=1).has_notes
    assert not facts.Billing(none, none, 0, None, calls=1, model_ms=1).has_notes
