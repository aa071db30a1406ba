"""Late tool results, which arrive after the call was abandoned, are stored in the log and change nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from django.db import connections

from runs import chaos
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import Effect, RunStatus, ToolStatus
from runs.tools.base import ToolContext
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.timing import eventually
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "sk-ant-api03-" + "Ab1" * 30
Release = Callable[[], None]
_gate = threading.Event()


def work(ctx: ToolContext, n: int) -> str:
    assert _gate.wait(60)
    return f"did {n} with {SECRET}"


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=0.3)
def hanging_once(ctx: ToolContext, n: int) -> str:
    """Return when the test releases it, after the time limit."""
    return work(ctx, n)


@tool(effect=Effect.READ, timeout_s=0.3)
def hanging_read(ctx: ToolContext, n: int) -> str:
    """Return when the test releases it, after the time limit."""
    return work(ctx, n)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=30)
def slow_once(ctx: ToolContext, n: int) -> str:
    """Return when the test releases it."""
    return work(ctx, n)


for each in (hanging_once, hanging_read, slow_once):
    TOOLS.register(each)
NAMES = ["hanging_once", "hanging_read", "slow_once"]


@pytest.fixture
def release() -> Iterator[Release]:
    """Release the tools and wait for their threads to end."""

    def go() -> None:
        _gate.set()
        for thread in threading.enumerate():
            if thread.name.startswith("tool-"):
                thread.join(60)

    _gate.clear()
    yield go
    go()


def late_outputs(run: AgentRun) -> list[Event]:
    return [event for event in events(run) if event.type == "tool.output"]


def test_of_a_call_that_nobody_knows_the_outcome_of(scripted: MakeScripted, release: Release) -> None:
    """A hanging tool holds no run longer than its time limit; its later result can be read in the log."""
    run = drive(scripted(calls=[["hanging_once"]], tools=NAMES))
    assert (run.status, run.status_reason) == (RunStatus.WAITING, "unknown_tool")
    assert late_outputs(run) == []

    release()

    [late] = late_outputs(run)
    call = AgentRunToolCall.objects.get(run=run)
    assert (late.ref_id, late.epoch, late.late, late.payload["late"]) == (call.pk, None, False, True)
    assert late.payload["text"].startswith("did 10 with [REDACTED")
    run.refresh_from_db()
    assert (run.status, call.status, call.result_message) == (RunStatus.WAITING, ToolStatus.UNKNOWN, None)


def test_a_late_result_of_each_abandoned_attempt_is_logged(scripted: MakeScripted, release: Release) -> None:
    run = drive(scripted(calls=[["hanging_read"]], tools=NAMES))
    assert run.status == RunStatus.COMPLETED
    assert AgentRunToolCall.objects.get(run=run).status == ToolStatus.ERROR

    release()

    assert [(event.late, event.payload["late"]) for event in late_outputs(run)] == [(True, True)] * 2
    check(run)


def test_a_late_result_after_a_stop_is_logged(scripted: MakeScripted, worker: Worker, release: Release) -> None:
    run = scripted(calls=[["slow_once"]], tools=NAMES)
    driving = threading.Thread(target=drive_and_close, args=(worker, run))
    driving.start()
    eventually(lambda: any(e.type == "tool.start" for e in events(run)), why="the tool is at work")
    inbox.stop(run.pk, by="test")
    driving.join(60)
    run.refresh_from_db()
    assert run.status == RunStatus.STOPPED

    release()

    [late] = late_outputs(run)
    assert late.late
    check(run)


def drive_and_close(worker: Worker, run: AgentRun) -> None:
    try:
        worker.drive(run.pk)
    finally:
        connections.close_all()


@pytest.mark.parametrize("point", ["tool.returned", "checkpoint.before"])
def test_a_late_result_of_a_worker_that_lost_its_run_is_logged(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The result does not count, but it is kept."""
    run, other, left = scripted(calls=[["ledger_once"]]), Worker(), [1]

    def take_over(name: str) -> None:
        if name == point and left:
            left.pop()
            AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
            assert other.drive(run.pk)

    monkeypatch.setattr(chaos, "point", take_over)
    worker.drive(run.pk)
    other.close(5)

    run.refresh_from_db()
    assert (run.status, run.status_reason, run.lease_epoch) == (RunStatus.WAITING, "unknown_tool", 2)
    [late] = late_outputs(run)
    assert (late.payload["text"], late.epoch) == ("did 10", None)
    assert AgentRunToolCall.objects.get(run=run).result_message is None
    check(run)
