"""A failing database query during a model call or a tool call interrupts neither, and makes no outcome unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.db import OperationalError

from runs import chaos
from runs.engine import leases
from runs.lifecycle import command_outcomes
from runs.models import AgentRun, AgentRunToolCall, RunError
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move
from timeline import log

pytestmark = pytest.mark.django_db(transaction=True)
Words = Callable[[], list[str]]


class Outage:
    """Makes the first queries between two crash points fail, and counts the failures."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = begin, end
        self._is_on = False
        self.failures = 0

    def point(self, name: str) -> None:
        if name in (self._begin, self._end):
            self._is_on = name == self._begin

    def spoil(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any) -> Any:
            if self._is_on and self.failures < 2:
                self.failures += 1
                raise OperationalError("server closed the connection unexpectedly")
            return ask(*args)

        return asked


def outage(begin: str, end: str, monkeypatch: pytest.MonkeyPatch) -> Outage:
    made = Outage(begin, end)
    monkeypatch.setattr(chaos, "point", made.point)
    monkeypatch.setattr(command_outcomes, "pending_types", made.spoil(command_outcomes.pending_types))
    return made


def completed_once(run: AgentRun) -> bool:
    check(run)
    return (run.state, run.lease_epoch) == (RunStatus.COMPLETED, 1)


def test_a_tool_continues_despite_a_failing_query(
    scripted: MakeScripted, effects: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its outcome would be unknown, and the run would wait for a person."""
    failing = outage("tool.running", "tool.returned", monkeypatch)

    run = drive(scripted(calls=[["ledger_once"]], tool_sleep_s=0.6))

    assert failing.failures
    assert completed_once(run)
    assert AgentRunToolCall.objects.get(run=run).status == "completed"
    assert len(effects()) == 1


def test_a_model_call_continues_despite_a_failing_query(
    scripted: MakeScripted, model_calls: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its answer would be billed twice, and the failure would count as a model failure."""
    failing = outage("model.before_call", "model.answered", monkeypatch)

    def play(_: ModelCall) -> Iterable[Move]:
        yield from [0.6, "Done."]

    run = drive(scripted(play))

    assert failing.failures
    assert completed_once(run)
    assert model_calls() == [1]
    assert not RunError.objects.filter(run=run).exists()
    assert "llm.turn.abandoned" not in [event.type for event in events(run)]


def test_a_failed_lease_check_before_a_tool_is_repeated(
    scripted: MakeScripted, effects: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "PROOF_PART", -1.0)
    real, left = log.require_epoch, [1]

    def require_epoch(*args: Any) -> None:
        if AgentRunToolCall.objects.filter(status="running").exists() and left:
            left.pop()
            raise OperationalError("server closed the connection unexpectedly")
        real(*args)

    monkeypatch.setattr(log, "require_epoch", require_epoch)
    run = drive(scripted(calls=[["ledger_once"]]))

    assert not left
    assert completed_once(run)
    assert len(effects()) == 1
