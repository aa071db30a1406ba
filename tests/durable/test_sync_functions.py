"""Synchronous functions have the methods of asynchronous ones, and do not block the event loop."""

from __future__ import annotations

import contextvars
import inspect
import threading

from agentops.durable import Answer, Call, DurableRun, SyncDurableRun, durable
from runs.models import AgentRunToolCall
from tests.support.durable import DurableSite

#: What only adapters of frameworks use, which call the asynchronous run.
FOR_ADAPTERS = {"at", "next_position", "has_outcome", "is_replaying", "may_have_messages"}


def parameters(method: object) -> set[str]:
    return set(inspect.signature(method).parameters) - {"has_steps"}  # type: ignore[arg-type]


def test_a_synchronous_run_has_the_methods_of_an_asynchronous_one() -> None:
    names = {name for name in vars(DurableRun) if not name.startswith("_")} - FOR_ADAPTERS

    assert {name: parameters(getattr(SyncDurableRun, name)) for name in names} == {
        name: parameters(getattr(DurableRun, name)) for name in names
    }


def test_calls_are_rejected_and_executed_by_a_child_run(durable_site: DurableSite) -> None:
    calls = (Call(id="c1", name="wrong"), Call(id="c2", name="delegate"))

    @durable("child")
    def child(run: SyncDurableRun, prompt: str) -> str:
        return f"did {prompt}"

    @durable("desk")
    def desk(run: SyncDurableRun, prompt: str) -> str:
        answer = run.model("model-1", lambda: Answer(calls=calls))
        run.reject(answer.calls[0], "no such tool")
        return str(run.child("child", "the work", call=answer.calls[1]).result)

    with durable_site.serving(desk, child):
        run = durable_site.completes(durable_site.start("desk"))

    assert run.result == "did the work"
    outcomes = AgentRunToolCall.objects.filter(run=run).values_list("call_id", "status").order_by("call_id")
    assert list(outcomes) == [("c1", "error"), ("c2", "completed")]


def test_a_synchronous_method_is_refused_in_the_event_loop(durable_site: DurableSite) -> None:
    problems: list[str] = []
    has_ended = threading.Event()

    def ask(run: SyncDurableRun) -> None:
        try:
            run.ask("Which size?")
        except RuntimeError as error:
            problems.append(str(error))
        has_ended.set()

    @durable("sizes")
    def function(run: SyncDurableRun, prompt: str) -> str:
        context = contextvars.copy_context()
        process.call(lambda: context.run(ask, run))
        assert has_ended.wait(60)
        return "ended"

    with durable_site.serving(function) as process:
        durable_site.completes(durable_site.start("sizes"))

    assert problems == ["this would block the event loop: use the asynchronous method"]
