"""The rows that a step writes and when: before the next model call, and before and after each tool."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from pydantic_ai.messages import ModelRequest, ToolCallPart, ToolReturnPart

from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Attempt, Checkpoint, RunError
from runs.providers.base import ModelCall
from runs.statuses import Effect, RunStatus, ToolStatus
from runs.tools.base import ToolContext, ToolDenied, ToolFailed, ToolResult
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool
from tests.support.engine import DieAt, MakeScripted
from tests.support.factories import drive, make_run
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)
Words = Callable[[], list[str]]


def elsewhere(look: Callable[[], Any]) -> Any:
    """Run a query on another connection, which sees only committed data."""

    def act() -> Any:
        try:
            return look()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(20)


def test_every_message_is_stored_before_the_next_model_call(scripted: MakeScripted) -> None:
    """At each call, the committed rows equal the messages of the request."""
    seen: list[tuple[int, list[str]]] = []

    def play(call: ModelCall) -> Iterable[Move]:
        roles = elsewhere(lambda: list(AgentRunMessage.objects.order_by("position").values_list("role", flat=True)))
        seen.append((sum(len(m.parts) if isinstance(m, ModelRequest) else 1 for m in call.history), roles))
        asked = [ToolCallPart("ledger_read", {"n": n}, f"c{call.number}{n}") for n in range(2)]
        yield from asked if call.number < 3 else ["Done."]

    assert drive(scripted(play)).status == RunStatus.COMPLETED

    turn = ["assistant", "tool_result", "tool_result"]
    assert [roles for _, roles in seen] == [["system", "user", *turn * n] for n in range(3)]
    assert [sent for sent, _ in seen] == [len(roles) for _, roles in seen]


# --- The rows of tool calls -------------------------------------------------------------------------------------


@tool(effect=Effect.READ, timeout_s=20)
def breaks_once(ctx: ToolContext, n: int) -> str:
    """Fail hard on the first attempt."""
    if ctx.attempt == 0:
        raise ToolFailed("quota", "come again", retryable=True)
    return f"did {n}"


@tool(effect=Effect.READ, timeout_s=20)
def says_no(ctx: ToolContext, n: int) -> str:
    """Raise a denial."""
    raise ToolDenied("path_denied", "not this one")


@tool(effect=Effect.READ, timeout_s=20)
def takes_a_while(ctx: ToolContext, n: int) -> str:
    """Take a fifth of a second."""
    time.sleep(0.2)
    return f"did {n}"


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=20)
def breaks(ctx: ToolContext, n: int) -> str:
    """Fail hard on every attempt."""
    raise ToolFailed("quota", "no more", retryable=True)


@tool(effect=Effect.IDEMPOTENT, timeout_s=20)
def is_busy(ctx: ToolContext, n: int, times: int = 1) -> ToolResult:
    """Return a soft error for the first attempts."""
    return ToolResult(f"busy {ctx.attempt}" if ctx.attempt < times else f"did {n}", is_error=ctx.attempt < times)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=20)
def is_busy_once(ctx: ToolContext, n: int) -> ToolResult:
    """Return a soft error, from a tool that is not safe to repeat."""
    return ToolResult(f"busy {ctx.attempt}", is_error=True)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=20, repeats_after_error=True)
def is_asked_again(ctx: ToolContext, n: int) -> ToolResult:
    """Return a soft error, from a tool that declares that a failed call had no effect."""
    return ToolResult(f"attempt {ctx.attempt}", is_error=ctx.attempt == 0)


for each in (breaks_once, says_no, takes_a_while, breaks, is_busy, is_busy_once, is_asked_again):
    TOOLS.register(each)
NAMES = ["breaks_once", "says_no", "takes_a_while", "breaks", "is_busy", "is_busy_once", "is_asked_again"]


def run_of(scripted: MakeScripted, *names: str, pause_s: float = 0.0, **arguments: Any) -> AgentRun:
    """Drive a run of two model calls, the first of which calls these tools."""

    def play(call: ModelCall) -> Iterable[Move]:
        yield from ["Thinking. ", pause_s]
        asked = [ToolCallPart(name, {"n": n} | arguments, f"c{n}") for n, name in enumerate(names)]
        yield from asked if call.number == 1 else ["Done."]

    run = drive(scripted(play, tools=NAMES))
    assert run.status == RunStatus.COMPLETED
    check(run)
    return run


def calls_of(run: AgentRun) -> list[AgentRunToolCall]:
    return list(AgentRunToolCall.objects.filter(run=run).select_related("message").order_by("id"))


def told(call: AgentRunToolCall) -> ToolReturnPart:
    assert call.result_message is not None
    return call.result_message.content["parts"][0]


ENDS = ("tool.start", "tool.end")


@pytest.mark.slow
def test_a_call_stores_its_result_and_duration(scripted: MakeScripted) -> None:
    """The duration is only the tool's, without the model's answer; parallel calls share a message and have separate
    durations.
    """
    run = run_of(scripted, "takes_a_while", "breaks_once", "takes_a_while", pause_s=0.5)

    one, other, last = calls_of(run)
    assert [call.status for call in (one, other, last)] == ["completed"] * 3
    for call in (one, last):
        start, end = (next(e.ts for e in events(run) if (e.type, e.ref_id) == (name, call.pk)) for name in ENDS)
        # One millisecond for rounding of the clock.
        assert call.duration_ms is not None
        assert 200 <= call.duration_ms <= (end - start) / timedelta(milliseconds=1) + 1
    assert {call.message_id for call in (one, other, last)} == {one.message_id}
    assert (one.message.role, one.message.step_number) == ("assistant", 1)


def test_a_hard_error_is_retried_and_stored(scripted: MakeScripted) -> None:
    """Each failed attempt has a row; a tool that is not safe to repeat is not retried."""
    run = run_of(scripted, "breaks_once", "breaks")

    again, once = calls_of(run)
    assert (again.status, again.starts, again.attempts, again.output) == ("completed", 2, 2, "did 0")
    assert (once.status, once.starts, once.attempts) == ("error", 1, 1)
    assert "no more" in once.output
    errors = RunError.objects.filter(run=run).order_by("id")
    assert list(errors.values_list("context", "call_id", "attempt", "error_type")) == [
        ("breaks_once", "c0", 0, "quota"),
        ("breaks", "c1", 0, "quota"),
    ]
    assert [e.ref_id for e in events(run) if e.type == "retry.scheduled"] == [again.pk]


def test_a_soft_error_is_retried_and_not_stored(scripted: MakeScripted) -> None:
    """Retried like a hard error if the tool is repeatable; the model gets the last answer, and no error is
    stored.
    """
    run = run_of(scripted, "is_busy", "is_busy_once", "is_asked_again")

    again, once, declared = calls_of(run)
    assert (again.status, again.starts, again.attempts, told(again)["content"]) == ("completed", 2, 2, "did 0")
    assert (once.status, once.starts, told(once)["content"]) == ("error", 1, "busy 0")
    assert (declared.status, declared.starts, told(declared)["content"]) == ("completed", 2, "attempt 1")
    assert not RunError.objects.filter(run=run).exists()
    assert [e.type for e in events(run) if e.type == "error"] == []
    retries = [e for e in events(run) if e.type == "retry.scheduled"]
    assert [(e.ref_id, e.payload["what"], e.payload["max_attempts"]) for e in retries] == [
        (again.pk, "tool", 2),
        (declared.pk, "tool", 2),
    ]
    assert (retries[0].payload["error_type"], retries[0].payload["error"]) == ("tool_error", "busy 0")


def test_the_settings_of_an_agent_limit_the_attempts_of_a_tool(scripted: MakeScripted) -> None:
    """`tool_max_retries` in its settings; each delay is twice the previous one, with jitter."""
    run = drive(scripted(lambda call: busy(call, times=9), tools=NAMES, tool_max_retries=3, retry_base_delay_ms=8))
    never = drive(scripted(lambda call: busy(call, times=1), tools=NAMES, tool_max_retries=0))

    [call], [single] = calls_of(run), calls_of(never)
    assert (call.status, call.starts, call.attempts, told(call)["content"]) == ("error", 4, 4, "busy 3")
    assert (single.status, single.starts) == ("error", 1)
    pauses = [e.payload["delay_ms"] for e in events(run) if e.type == "retry.scheduled"]
    assert [low <= pause <= low * 1.25 for low, pause in zip((8, 16, 32), pauses, strict=True)] == [True] * 3


def busy(call: ModelCall, **arguments: Any) -> Iterable[Move]:
    yield ToolCallPart("is_busy", {"n": 1} | arguments, "c1") if call.number == 1 else "Done."


def test_invalid_arguments_are_not_retried(scripted: MakeScripted) -> None:
    """The model gets the validation error, and no error of the run is stored."""
    run = run_of(scripted, "takes_a_while", n="many")

    [call] = calls_of(run)
    assert (call.status, call.starts, told(call)["outcome"]) == ("error", 1, "failed")
    assert not RunError.objects.filter(run=run).exists()


def test_a_denied_call_and_a_call_of_a_missing_tool_have_an_end_event(scripted: MakeScripted) -> None:
    """The model receives the error, and every start event has an end event."""
    run = run_of(scripted, "says_no", "no_such_tool")

    denied, unknown = calls_of(run)
    assert [call.status for call in (denied, unknown)] == [ToolStatus.ERROR] * 2
    assert "not this one" in told(denied)["content"]
    assert "no tool named 'no_such_tool'" in told(unknown)["content"]
    types = [(event.type, event.ref_id) for event in events(run)]
    assert types.count(("tool.start", denied.pk)) == types.count(("tool.end", denied.pk)) == 1
    assert (types.count(("tool.start", unknown.pk)), types.count(("tool.end", unknown.pk))) == (0, 1)
    assert types.count(("safety.block", denied.pk)) == 1


# --- No checkpoints, and many workers ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["wait", "tell_model"])
def test_a_run_without_checkpoints_is_loaded_from_its_rows(scripted: MakeScripted, die_at: DieAt, policy: str) -> None:
    """The conversation consists of the rows; an open call gets a result or waits, and never runs twice."""
    calls = [["ledger_read"], ["ledger_once", "ledger_idempotent"]]
    run = scripted(calls=calls, on_unknown_tool=policy)
    assert die_at(run, "tool.returned", hit=2)
    assert Checkpoint.objects.filter(run=run).delete()[0]

    run = drive(run)

    check(run)
    once, other = AgentRunToolCall.objects.filter(run=run, step_number=2).order_by("id")
    assert (once.status, once.starts) == ("unknown", 1)
    if policy == "wait":
        assert (run.status, run.status_reason, other.status) == (RunStatus.WAITING, "unknown_tool", "planned")
    else:
        assert (run.status, run.step_count, other.status) == (RunStatus.COMPLETED, 3, "completed")


def test_a_single_claim_succeeds_when_ten_are_concurrent() -> None:
    """Ten concurrent claims, ten times; the others leave no trace."""
    for _ in range(10):
        run, together = make_run(), threading.Barrier(10)

        def claim(number: int, run: AgentRun = run, together: threading.Barrier = together) -> Any:
            try:
                together.wait(60)
                return transitions.claim(run.pk, f"worker {number}")
            finally:
                connections.close_all()

        with ThreadPoolExecutor(10) as pool:
            claims = [claimed for claimed in pool.map(claim, range(10)) if claimed is not None]

        assert [claimed.epoch for claimed in claims] == [1]
        assert Attempt.objects.filter(run=run).count() == 1
        assert [event.type for event in events(run)].count("run.started") == 1


@tool(effect=Effect.READ, timeout_s=20)
def takes_all_memory(ctx: ToolContext, n: int) -> str:
    """Allocate more memory than any system has."""
    return str(len(bytearray(1 << 60)))


TOOLS.register(takes_all_memory)


def test_a_tool_that_takes_all_memory_fails(scripted: MakeScripted) -> None:
    """The error belongs to the tool; its worker continues."""
    run = drive(scripted(calls=[["takes_all_memory"]], tools=["takes_all_memory"]))

    [call] = calls_of(run)
    assert (run.status, call.status) == (RunStatus.COMPLETED, "error")
    assert "MemoryError" in str(call.output) + RunError.objects.filter(run=run)[0].error_type
    check(run)
