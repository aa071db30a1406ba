"""Concurrent calls of one turn: which calls may overlap, the order of their results, and recovery after a crash."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.db import connections
from pydantic_ai.messages import ToolCallPart

from runs.errors import InvalidAgent
from runs.lifecycle import creation, inbox
from runs.models import AgentRun, AgentRunToolCall
from runs.providers.base import ModelCall
from runs.statuses import RunStatus, ToolStatus
from runs.tools.base import ToolContext
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted
from tests.support.factories import drive, make_agent
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move
from tests.support.timing import eventually

pytestmark = pytest.mark.django_db(transaction=True)
_together = threading.Barrier(3)
_seen: list[str] = []


@tool(effect="read", timeout_s=120)
def meets(name: str) -> str:
    """Return after three calls have met; call "a" returns last."""
    _together.wait(100)
    if name == "a":
        eventually(lambda: len(_seen) == 2, why="the other two return")
    _seen.append(name)
    return f"{name} met"


@tool(effect="read", timeout_s=20)
def looks(name: str) -> str:
    """Record the call."""
    _seen.append(name)
    return name


@tool(timeout_s=20)
def writes(name: str) -> str:
    """Record the call; it must not overlap with any other call."""
    time.sleep(0.05)
    _seen.append(name)
    return name


@tool(effect="read", timeout_s=20)
def waits(ctx: ToolContext, name: str) -> str:
    """Run until the call is cancelled."""
    _seen.append(name)
    while not ctx.cancelled():
        time.sleep(0.01)
    _seen.append(f"{name} ended")
    return name


for each in (meets, looks, writes, waits):
    TOOLS.register(each)
NAMES = ["meets", "looks", "writes", "waits"]


@pytest.fixture(autouse=True)
def fresh() -> None:
    _seen.clear()
    _together.reset()


def calling(scripted: MakeScripted, *calls: str, **settings: Any) -> AgentRun:
    """Return a run whose model makes these calls in one answer, each a tool and a name, and then completes."""

    def play(call: ModelCall) -> Iterable[Move]:
        pairs = [each.split() for each in calls]
        asked = [ToolCallPart(name, {"name": given}, given) for name, given in pairs]
        yield from asked if call.number == 1 else ["Done."]

    return scripted(play, tools=NAMES, **{"parallel_tools": 8} | settings)


def outputs(run: AgentRun) -> list[Any]:
    """Return the results in the order of the conversation."""
    calls = AgentRunToolCall.objects.filter(run=run).order_by("result_message__position")
    return [(call.call_id, call.status, call.output) for call in calls]


def test_reads_run_concurrently_and_their_results_keep_the_order(scripted: MakeScripted) -> None:
    run = drive(calling(scripted, "meets a", "meets b", "meets c"))

    assert outputs(run) == [(name, "completed", f"{name} met") for name in "abc"]
    assert _seen[-1] == "a", "they have not run at the same time"
    assert [e.type for e in events(run) if e.type.startswith("tool.")] == ["tool.start"] * 3 + ["tool.end"] * 3
    check(run)


def test_a_call_that_is_not_repeatable_overlaps_with_no_other_call(scripted: MakeScripted) -> None:
    run = drive(calling(scripted, "looks a", "writes b", "looks c", "looks d"))

    assert _seen[:2] == ["a", "b"]
    assert sorted(_seen[2:]) == ["c", "d"]
    assert [name for name, _, _ in outputs(run)] == ["a", "b", "c", "d"]
    check(run)


def test_a_limit_of_one_runs_calls_in_sequence(scripted: MakeScripted) -> None:
    run = drive(calling(scripted, "looks a", "looks b", parallel_tools=1))

    kinds = [e.type for e in events(run) if e.type.startswith("tool.")]
    assert kinds == ["tool.start", "tool.end"] * 2


@pytest.mark.parametrize("value", [0, 65, True, "8"])
def test_an_invalid_limit_is_refused(value: object) -> None:
    agent = make_agent(settings={"parallel_tools": value})

    with pytest.raises(InvalidAgent, match=r"settings\.parallel_tools must be a whole number from 1 to 64"):
        creation.create(agent.project, agent, "Go.", by="test")


def test_a_misspelled_tool_name_gets_a_suggestion(scripted: MakeScripted) -> None:
    run = drive(calling(scripted, "look a", "zzz b"))

    [(_, _, hint), (_, _, names)] = outputs(run)
    assert hint == "There is no tool named 'look'. Did you mean 'looks'?"
    assert names == "There is no tool named 'zzz'. There are: meets, looks, writes, waits."


POINTS = ["tool.before_start", "tool.marked_running", "tool.running", "tool.returned", "result.committed", "tool.next"]


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_during_concurrent_calls_keeps_finished_results(
    scripted: MakeScripted, die_at: DieAt, point: str, hit: int
) -> None:
    """The next worker repeats only the calls without a result."""
    run = calling(scripted, "looks a", "looks b", "looks c", "writes d")
    assert die_at(run, point, hit=hit)

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert outputs(run) == [(name, "completed", name) for name in "abcd"]
    assert _seen.count("d") == 1
    check(run)


def test_a_stop_ends_all_concurrent_calls(scripted: MakeScripted, worker: Worker) -> None:
    run = calling(scripted, "waits a", "waits b", "waits c")
    driving = threading.Thread(target=_closing(worker.drive), args=(run.pk,))
    driving.start()
    eventually(lambda: len(_seen) == 3, why="all tools are at work")

    inbox.stop(run.pk, by="test")
    driving.join(60)

    run.refresh_from_db()
    assert run.status == RunStatus.STOPPED
    assert {status for _, status, _ in outputs(run)} == {ToolStatus.UNKNOWN}
    eventually(lambda: len(_seen) == 6, why="all tools have been told to end")
    check(run)


def _closing(function: Callable[..., object]) -> Callable[..., None]:
    def call(*words: object) -> None:
        try:
            function(*words)
        finally:
            connections.close_all()

    return call
