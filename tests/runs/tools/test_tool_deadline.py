"""A tool that hangs costs its time limit and nothing more.
May import runs.tools."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

from agentops.http.deadline import DeadlineExceeded, call_within
from runs.tools.base import Effect, Tool, ToolContext, ToolFailed, ToolResult
from runs.tools.functions import tool
from runs.tools.timed_call import run_with_deadline


def quick(**options) -> Tool:
    return Tool(name="quick", description="", parameters_schema={}, execute=lambda *_: "done", **options)


def test_it_works(ctx):
    assert run_with_deadline(quick(), ctx, "{}") == ToolResult("done")
    assert run_with_deadline(quick(timeout_s=None), ctx, "{}") == ToolResult("done")


def test_it_gives_up_at_the_limit_and_drops_the_late_result(ctx):
    seen, let_go, late = [], threading.Event(), threading.Event()

    @tool(timeout_s=0.1, effect=Effect.READ)
    def hangs(ctx: ToolContext) -> str:
        seen.append(ctx.cancelled())
        let_go.wait(10)
        seen.append(ctx.cancelled())
        late.set()
        return "too late"

    started = time.monotonic()
    with pytest.raises(ToolFailed) as caught:
        run_with_deadline(hangs, ctx, "{}")
    took = time.monotonic() - started

    assert 0.1 <= took < 2
    assert (caught.value.error_type, caught.value.retryable) == ("timeout", True)
    assert caught.value.message == "'hangs' did not answer within 0.1 s"
    let_go.set()
    assert late.wait(5)
    assert seen == [False, True]
    assert run_with_deadline(quick(), ctx, "{}") == ToolResult("done")


def test_a_hung_thread_does_not_keep_the_process_alive(ctx):
    let_go = threading.Event()
    hangs = Tool("hung", "", {}, execute=lambda *_: let_go.wait(10), timeout_s=0.05)

    with pytest.raises(ToolFailed):
        run_with_deadline(hangs, ctx, "{}")

    left = [thread for thread in threading.enumerate() if thread.name == "tool-hung"]
    assert [thread.daemon for thread in left] == [True]
    let_go.set()
    left[0].join(5)


def test_the_run_s_own_cancellation_reaches_the_tool(make_ctx):
    stopped = threading.Event()

    @tool(timeout_s=5)
    def watches(ctx: ToolContext) -> str:
        stopped.set()
        return "stopped" if ctx.cancelled() else "goes on"

    assert run_with_deadline(watches, make_ctx(cancelled=stopped.is_set), "{}").output == "stopped"


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("x")], ids=repr)
def test_errors_cross_the_thread(ctx, inline, error):
    def execute(*_):
        raise error

    failing = Tool("failing", "", {}, execute=execute, inline=inline)

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ToolFailed):
        run_with_deadline(failing, ctx, "{}")


def test_the_thread_sees_the_caller_s_context(ctx):
    request = contextvars.ContextVar("request", default="none")
    request.set("r-1")
    reads = Tool("reads", "", {}, execute=lambda *_: request.get())

    assert run_with_deadline(reads, ctx, "{}").output == "r-1"


def test_an_inline_tool_runs_on_the_caller_s_thread(ctx):
    here = threading.get_ident()
    where = Tool("where", "", {}, execute=lambda *_: threading.get_ident(), inline=True)
    elsewhere = Tool("elsewhere", "", {}, execute=lambda *_: threading.get_ident())

    assert run_with_deadline(where, ctx, "{}").output == str(here)
    assert run_with_deadline(elsewhere, ctx, "{}").output != str(here)


def test_within_says_when_time_is_up():
    let_go = threading.Event()

    with pytest.raises(DeadlineExceeded):
        call_within(0.05, lambda: let_go.wait(10), name="waiting")

    let_go.set()
    assert call_within(1, lambda: 5, name="five") == 5
