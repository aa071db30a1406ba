"""Durable functions, asynchronous and synchronous, against a running site."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentops.durable import DurableRun, StepFailed, SyncDurableRun, durable
from runs.models import AgentRunToolCall
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of


def double(number: int) -> int:
    return number * 2


async def half(number: int) -> float:
    return number / 2


def test_an_asynchronous_function_is_executed(durable_site: DurableSite) -> None:
    @durable("nightly", description="Plans.")
    async def nightly(run: DurableRun, prompt: str) -> dict[str, Any]:
        doubled = await run.step("double", double, 21)
        halved = await run.step("half", half, number=doubled)
        return {"prompt": prompt, "values": [doubled, halved]}

    with durable_site.serving(nightly):
        run = durable_site.completes(durable_site.start("nightly"))

    assert run.result == '{\n  "prompt": "Go.",\n  "values": [\n    42,\n    21.0\n  ]\n}'
    assert steps_of(run) == [("1", "double", "done"), ("2", "half", "done")]
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number")
    assert [(call.tool_name, call.input, call.output) for call in calls] == [
        ("double", {"number": 21}, "42"),
        ("half", {"number": 42}, "21.0"),
    ]


def test_a_synchronous_function_is_executed_in_one_thread(durable_site: DurableSite) -> None:
    threads: set[int] = set()

    def note_thread(number: int) -> int:
        threads.add(threading.get_ident())
        return number

    @durable("sync")
    def sync(run: SyncDurableRun, prompt: str) -> str:
        note_thread(0)
        first = run.step("first", note_thread, 1)
        second = run.step("second", half, first + 1)
        third = run.step("third", lambda: note_thread(3))
        return f"{prompt} {first} {second} {third}"

    with durable_site.serving(sync):
        run = durable_site.completes(durable_site.start("sync"))

    assert run.result == "Go. 1 1.0 3"
    assert len(threads) == 1
    assert [name for _, name, _ in steps_of(run)] == ["first", "second", "third"]


def test_branches_run_at_the_same_time(durable_site: DurableSite) -> None:
    at_once = threading.Barrier(3, timeout=30)

    def meet(number: int) -> int:
        at_once.wait()
        return number

    async def branch(run: DurableRun, number: int) -> int:
        first = await run.step("meet", meet, number)
        return int(await run.step("double", double, first))

    @durable("parallel")
    async def parallel(run: DurableRun, prompt: str) -> list[int]:
        return await asyncio.gather(*(branch(run, number) for number in (1, 2, 3)))

    with durable_site.serving(parallel):
        run = durable_site.completes(durable_site.start("parallel"))

    assert run.result.split() == ["[", "2,", "4,", "6", "]"]
    assert sorted(steps_of(run)) == sorted(
        [*((str(n), "meet", "done") for n in (1, 2, 3)), *((f"{n}.1", "double", "done") for n in (1, 2, 3))]
    )


def test_an_exception_of_the_function_pauses_the_run(durable_site: DurableSite) -> None:
    @durable("broken")
    async def broken(run: DurableRun, prompt: str) -> None:
        raise KeyError("no such order")

    with durable_site.serving(broken):
        run = durable_site.reaches(durable_site.start("broken"), RunStatus.PAUSED)

    assert (run.status_reason, run.error_type, run.error_message) == ("error", "KeyError", "'no such order'")


def test_a_handled_failure_is_stored_and_an_unhandled_one_is_not(durable_site: DurableSite) -> None:
    failures: list[str] = []

    def fail(text: str) -> None:
        failures.append(text)
        raise ValueError(text)

    @durable("handles")
    async def handles(run: DurableRun, prompt: str) -> str:
        with pytest.raises(StepFailed) as raised:
            await run.step("first", fail, "handled", effect="read")
        assert (raised.value.type, raised.value.message) == ("ValueError", "handled")
        return str(await run.step("second", fail, "unhandled", effect="read"))

    with durable_site.serving(handles):
        run = durable_site.reaches(durable_site.start("handles"), RunStatus.PAUSED)

    assert steps_of(run) == [("1", "first", "failed"), ("2", "second", "started")]
    assert (run.error_type, run.error_message) == ("ValueError", "step 'second': unhandled")
    assert failures == ["handled", "unhandled"]
