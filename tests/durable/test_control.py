"""Runs that are stopped, paused, taken away, or handed back by a process that ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from agentops.base.database_clock import Now
from agentops.client import Client, StateConflict, Unauthorized
from agentops.durable import DurableRun, LeaseLost, SyncDurableRun, durable
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.factories import make_agent
from tests.support.timing import eventually

PAUSED, STOPPED, QUEUED = RunStatus.PAUSED, RunStatus.STOPPED, RunStatus.QUEUED


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


class Slow:
    """An asynchronous step that takes until it is released, and notes how it ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.starts = 0
        self.released = asyncio.Event()

    async def __call__(self) -> str:
        self.starts += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        self.ends.append("ended")
        return "slow"


def test_a_stop_cancels_the_step(durable_site: DurableSite, person: Client) -> None:
    slow = Slow()

    @durable("slow")
    async def function(run: DurableRun, prompt: str) -> None:
        await run.step("slow", slow)

    with durable_site.serving(function):
        run = durable_site.start("slow")
        durable_site.at_step(run, "slow")
        person.stop(run.pk)
        durable_site.reaches(run, STOPPED)

    assert slow.ends == ["cancelled"]


def test_a_pause_waits_for_the_step_and_a_resumed_run_continues(durable_site: DurableSite, person: Client) -> None:
    slow, later = Slow(), Slow()

    @durable("slow")
    async def function(run: DurableRun, prompt: str) -> str:
        first = await run.step("slow", slow)
        return f"{first} {await run.step('later', later)}"

    with durable_site.serving(function) as process:
        run = durable_site.start("slow")
        durable_site.at_step(run, "slow")
        person.pause(run.pk)
        process.call(slow.released.set)
        process.call(later.released.set)
        durable_site.reaches(run, PAUSED, reason="operator")
        assert (steps_of(run), later.starts) == ([("1", "slow", "done")], 0)
        person.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (successor.result, slow.starts, later.starts) == ("slow slow", 1, 1)


def test_the_message_of_a_resume_is_received_at_once(durable_site: DurableSite, person: Client) -> None:
    """Also if the function had received messages before the pause, and does not ask again."""
    slow = Slow()

    @durable("slow")
    async def function(run: DurableRun, prompt: str) -> str:
        texts = await run.messages()
        await run.step("slow", slow, effect="read")
        return " ".join(texts)

    with durable_site.serving(function, grace_s=0.05) as process:
        run = durable_site.start("slow")
        durable_site.at_step(run, "slow")
        person.pause(run.pk)
        durable_site.reaches(run, PAUSED, reason="operator")
        process.call(slow.released.set)
        person.resume(run.pk, "Use the other account.")
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert successor.result == "Use the other account."


def test_a_pause_cancels_a_step_that_does_not_end_in_time(durable_site: DurableSite, person: Client) -> None:
    slow = Slow()

    @durable("slow")
    async def function(run: DurableRun, prompt: str) -> None:
        await run.step("slow", slow, effect="read")

    with durable_site.serving(function, grace_s=0.05):
        run = durable_site.start("slow")
        durable_site.at_step(run, "slow")
        person.pause(run.pk)
        durable_site.reaches(run, PAUSED, reason="operator")

    assert slow.ends == ["cancelled"]


def test_a_stop_waits_for_a_step_in_a_thread(durable_site: DurableSite, person: Client) -> None:
    started, finish = threading.Event(), threading.Event()
    happened: list[str] = []

    def slow() -> str:
        started.set()
        finish.wait(60)
        return "slow"

    @durable("sync")
    def function(run: SyncDurableRun, prompt: str) -> None:
        try:
            run.step("slow", slow)
            happened.append("continued")
            run.step("later", happened.append, "later")
        except Exception:
            happened.append("caught")

    with durable_site.serving(function):
        run = durable_site.start("sync")
        assert started.wait(60)
        person.stop(run.pk)
        finish.set()
        durable_site.reaches(run, STOPPED)

    assert happened in ([], ["continued"])
    assert steps_of(run) == [("1", "slow", "done")]


def test_a_lost_lease_ends_the_function_at_once(durable_site: DurableSite) -> None:
    slow = Slow()
    ends: list[type[BaseException]] = []

    @durable("slow")
    async def function(run: DurableRun, prompt: str) -> str:
        try:
            return str(await run.step("slow", slow, effect="read"))
        except BaseException as error:
            ends.append(type(error))
            try:
                await run.step("cleanup", Slow())
            except LeaseLost:
                ends.append(LeaseLost)
            raise

    with durable_site.serving(function) as first:
        run = durable_site.start("slow")
        durable_site.at_step(run, "slow")

        def is_claimed_again() -> bool:
            past = Now() - timedelta(seconds=1)
            AgentRun.objects.filter(pk=run.pk, lease_epoch=1).update(lease_expires_at=past)
            return slow.starts == 2 and slow.ends == ["cancelled"]

        # The same process claims the run again, unless a heartbeat comes before; the first execution ends.
        eventually(is_claimed_again, why="the run was claimed again")
        first.call(slow.released.set)
        durable_site.completes(run)

    assert ends == [asyncio.CancelledError, LeaseLost]
    assert (run.result, run.lease_epoch) == ("slow", 2)


def test_a_process_that_ends_waits_for_steps_and_hands_runs_back(durable_site: DurableSite) -> None:
    slow, later = Slow(), Slow()

    @durable("slow")
    async def function(run: DurableRun, prompt: str) -> str:
        values = await asyncio.gather(run.step("slow", slow), branch(run))
        return f"{values[0]} {values[1]}"

    async def branch(run: DurableRun) -> str:
        await run.step("quick", lambda: 1)
        await asyncio.sleep(0.5)
        return str(await run.step("later", later))

    with durable_site.serving(function) as process:
        run = durable_site.start("slow")
        durable_site.at_step(run, "quick")
        durable_site.at_step(run, "slow")
        process.stop()
        # Created after the end began: this process does not claim it.
        other = durable_site.start("slow")
        process.call(slow.released.set)
        process.end()
        run.refresh_from_db()
        other.refresh_from_db()
        assert (run.status, other.status, other.lease_epoch) == (QUEUED, QUEUED, 0)
        assert (slow.starts, later.starts) == (1, 0)
    with durable_site.serving(function) as process:
        process.call(later.released.set)
        durable_site.completes(run)
        durable_site.completes(other)

    assert run.result == "slow slow"
    assert slow.starts == 2


def test_a_process_that_ends_cancels_steps_after_the_grace_period(durable_site: DurableSite) -> None:
    slow = Slow()

    @durable("slow")
    async def function(run: DurableRun, prompt: str) -> str:
        return str(await run.step("slow", slow, effect="read"))

    with durable_site.serving(function, grace_s=0.05) as process:
        run = durable_site.start("slow")
        durable_site.at_step(run, "slow")
        process.end()
        run.refresh_from_db()

    assert (run.status, run.status_reason, slow.ends) == (QUEUED, "worker_ending", ["cancelled"])


def test_no_more_runs_are_held_than_the_concurrency_allows(durable_site: DurableSite) -> None:
    slow = Slow()

    @durable("slow")
    async def function(run: DurableRun, prompt: str) -> str:
        return str(await run.step("slow", slow))

    with durable_site.serving(function, concurrency=2) as process:
        runs = [durable_site.start("slow") for _ in range(3)]
        eventually(lambda: slow.starts == 2, why="two runs are claimed")
        process.call(slow.released.set)
        for run in runs:
            durable_site.completes(run)

    assert slow.starts == 3


def test_serve_refuses_what_cannot_work(durable_site: DurableSite) -> None:
    @durable("nightly")
    async def function(run: DurableRun, prompt: str) -> None:
        pass

    def error_of(*functions: Any, **options: Any) -> BaseException | None:
        process = durable_site.serving(*functions, **options)
        with suppress(Exception), process:
            eventually(lambda: process.error, within_s=30, why="serve() has ended")
        return process.error

    assert isinstance(error_of(function, key="aop_wrong"), Unauthorized)
    make_agent(durable_site.site.project, slug="nightly")
    conflict = error_of(function)
    assert isinstance(conflict, StateConflict)
    assert conflict.code == "agent_not_remote"
    assert isinstance(error_of(), ValueError)
    assert isinstance(error_of(function, durable("nightly")(lambda run, prompt: None)), ValueError)
    assert isinstance(error_of(lambda run, prompt: None), TypeError)
