"""A hanging tool costs only its time limit.

May import runs.tools.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
import time
from dataclasses import replace

import pytest

from agentops.base.http.deadline import MAX_OVERDUE, DeadlineExceeded, call_within, too_many
from runs.tools.base import Effect, OutcomeUnknown, Tool, ToolContext, ToolFailed, ToolResult
from runs.tools.call_limits import StartedTool, run_with_deadline
from runs.tools.functions import tool
from tests.support.timing import eventually


def quick(**options) -> Tool:
    return Tool(name="quick", description="", parameters_schema={}, execute=lambda *_: "done", **options)


def test_a_tool_returns_its_result_within_the_limit(ctx):
    assert run_with_deadline(quick(), ctx, "{}") == ToolResult("done")
    assert run_with_deadline(quick(timeout_s=None), ctx, "{}") == ToolResult("done")


def test_a_call_fails_at_the_limit_and_its_late_result_is_dropped(ctx):
    seen, let_go, late = [], threading.Event(), threading.Event()

    @tool(timeout_s=0.1, effect=Effect.READ)
    def hangs(ctx: ToolContext) -> str:
        let_go.wait(60)
        seen.append(ctx.cancelled())
        late.set()
        return "too late"

    started = time.monotonic()
    with pytest.raises(ToolFailed) as caught:
        run_with_deadline(hangs, ctx, "{}")
    took = time.monotonic() - started

    assert 0.1 <= took < 30, "it has waited for the tool"
    assert (caught.value.error_type, caught.value.retryable) == ("timeout", True)
    assert caught.value.message == "'hangs' did not answer within 0.1 s"
    let_go.set()
    assert late.wait(60)
    assert seen == [True]
    assert run_with_deadline(quick(), ctx, "{}") == ToolResult("done")


def test_a_hanging_thread_does_not_keep_the_process_alive(ctx):
    let_go = threading.Event()
    hangs = Tool("hung", "", {}, execute=lambda *_: let_go.wait(60), timeout_s=0.05)

    with pytest.raises(ToolFailed):
        run_with_deadline(hangs, ctx, "{}")

    left = [thread for thread in threading.enumerate() if thread.name == "tool-hung"]
    assert [thread.daemon for thread in left] == [True]
    let_go.set()
    left[0].join(60)


def test_a_thread_that_cannot_be_started_fails_the_call_and_not_the_run(ctx):
    """As if the machine or container had reached its thread limit. The tool certainly had no effect."""
    called = []
    once = Tool("once", "", {}, execute=lambda *_: called.append(1), effect=Effect.AT_MOST_ONCE)
    usual = threading.stack_size(1 << 46)
    try:
        started = StartedTool(once, ctx, "{}")
    finally:
        threading.stack_size(usual)

    with pytest.raises(ToolFailed, match="not run: can't start new thread") as caught:
        started.wait()

    assert (caught.value.error_type, caught.value.retryable) == ("no_thread", True)
    assert not called
    assert not too_many((StartedTool, "once"))


def test_the_cancellation_of_the_run_reaches_the_tool(make_ctx):
    stopped = threading.Event()

    @tool(timeout_s=60)
    def watches(ctx: ToolContext) -> list[bool]:
        before = ctx.cancelled()
        stopped.set()
        return [before, ctx.cancelled()]

    assert json.loads(run_with_deadline(watches, make_ctx(cancelled=stopped.is_set), "{}").output) == [False, True]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("x")], ids=repr)
def test_errors_are_raised_in_the_calling_thread(ctx, inline, error):
    def execute(*_):
        raise error

    failing = Tool("failing", "", {}, execute=execute, inline=inline)

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ToolFailed):
        run_with_deadline(failing, ctx, "{}")


def test_the_thread_has_the_caller_s_context_variables(ctx):
    request = contextvars.ContextVar("request", default="none")
    request.set("r-1")
    reads = Tool("reads", "", {}, execute=lambda *_: request.get())

    assert run_with_deadline(reads, ctx, "{}").output == "r-1"


def test_an_inline_tool_runs_in_the_caller_s_thread(ctx):
    here = threading.get_ident()
    where = Tool("where", "", {}, execute=lambda *_: threading.get_ident(), inline=True)
    elsewhere = Tool("elsewhere", "", {}, execute=lambda *_: threading.get_ident())

    assert run_with_deadline(where, ctx, "{}").output == str(here)
    assert run_with_deadline(elsewhere, ctx, "{}").output != str(here)


def test_call_within_raises_after_the_time_limit():
    let_go = threading.Event()

    with pytest.raises(DeadlineExceeded):
        call_within(0.05, lambda: let_go.wait(60), name="waiting")

    let_go.set()
    assert call_within(60, lambda: 5, name="five") == 5


def test_an_async_tool_is_cancelled_at_the_limit(ctx):
    """Its clean-up still runs, and other calls are not delayed, because each call has a separate event loop."""
    cleaned = threading.Event()

    @tool(timeout_s=0.1)
    async def hangs(ctx: ToolContext, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
            return f"slept, {asyncio.current_task() is not None}"
        finally:
            cleaned.set()

    with pytest.raises(ToolFailed, match=r"did not answer within 0\.1 s"):
        run_with_deadline(hangs, ctx, {"seconds": 30})

    assert cleaned.wait(60)
    patient = replace(hangs, timeout_s=60)
    assert run_with_deadline(patient, ctx, {"seconds": 0}).output == "slept, True"
    assert "seconds" in run_with_deadline(patient, ctx, {"seconds": "x"}).output
    eventually(lambda: not any(thread.name == "tool-hangs" for thread in threading.enumerate()), why="it has ended")


def test_an_async_tool_stops_with_its_run(make_ctx):
    stopped, started = threading.Event(), threading.Event()

    @tool()
    async def hangs() -> None:
        started.set()
        await asyncio.sleep(30)

    def stop() -> None:
        if started.is_set():
            stopped.set()

    with pytest.raises(OutcomeUnknown):
        run_with_deadline(hangs, make_ctx(cancelled=stopped.is_set), {}, watch=stop)


def test_an_async_tool_is_never_inline():
    async def later() -> None: ...

    with pytest.raises(TypeError, match="cannot be inline"):
        tool(inline=True)(later)


def test_threads_of_a_hanging_tool_are_limited(ctx):
    let_go, begun, name = threading.Event(), threading.Semaphore(0), "hangs_for_good"

    def hang(*_) -> bool:
        begun.release()
        return let_go.wait(60)

    def failure_of(call: StartedTool) -> ToolFailed:
        with pytest.raises(ToolFailed) as caught:
            call.wait()
        return caught.value

    hangs = Tool(name, "", {}, execute=hang, timeout_s=0.01, effect=Effect.READ)
    patient = replace(hangs, timeout_s=60)
    calls = [StartedTool(hangs, ctx, "{}") for _ in range(MAX_OVERDUE)]
    assert all(begun.acquire(timeout=60) for _ in calls)
    assert {failure_of(call).error_type for call in calls} == {"timeout"}
    failures = [failure_of(StartedTool(patient, ctx, "{}")) for _ in range(3)]

    assert {(failure.error_type, failure.retryable) for failure in failures} == {("too_many_timeouts", False)}
    assert "still run" in failures[0].message
    assert sum(thread.name == f"tool-{name}" for thread in threading.enumerate()) == MAX_OVERDUE
    assert run_with_deadline(quick(), ctx, "{}").output == "done"
    let_go.set()
    eventually(lambda: not too_many((StartedTool, name)), why="the calls have returned")
    assert run_with_deadline(patient, ctx, "{}").output == "true"
