"""A package with durable functions, and its entry points, for tests of runs that workers execute with its code."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest
from django.db import connections

from agentops.accounts.models import Project
from runs.lifecycle import creation
from runs.models import Agent, AgentRun
from runs.worker.packaged import registering
from runs.worker.worker import Worker
from tests.support import engine
from tests.support.timing import eventually

#: Each execution of a step adds a line to the file of SHOP_LEDGER. The second step waits until `go` exists in the
#: directory of that file.
SOURCE = '''
    import asyncio, os, time
    from pathlib import Path
    from agentops.durable import Answer, Call, Usage, durable

    def note(word):
        with Path(os.environ["SHOP_LEDGER"]).open("a") as ledger:
            ledger.write(f"{word} {os.getpid()}\\n")
        return word

    async def wait(word):
        note(word)
        while not Path(os.environ["SHOP_LEDGER"]).with_name("go").exists():
            await asyncio.sleep(0.02)
        return f"{word} by {os.getpid()}"

    def hold(word):
        note(word)
        while not Path(os.environ["SHOP_LEDGER"]).with_name("go").exists():
            time.sleep(0.02)
        return f"{word} by {os.getpid()}"

    async def die(word):
        note(word)
        os.kill(os.getpid(), 9)

    @durable("support", description="Answers customers.", max_steps=1_000)
    async def support(run, prompt):
        """Execute three steps. The prompt is the effect of the second one."""
        first = await run.step("first", note, "first")
        second = await run.step("second", wait, "second", effect=prompt or "once")
        return [first, second, await run.step("third", note, "third")]

    @durable("support", version=2, description="Answers customers.", max_steps=1_000)
    async def support_2(run, prompt):
        first = await run.step("first", note, "first")
        second = await run.step("second", wait, "second", effect=prompt or "once")
        return [first, second, await run.step("third", note, "third of version 2")]

    @durable("blocking")
    def blocking(run, prompt):
        return run.step("second", hold, "second")

    @durable("counting", max_steps=1_000)
    async def counting(run, prompt):
        return [await run.step(f"step {number}", note, str(number)) for number in range(int(prompt))]

    @durable("talking")
    async def talking(run, prompt):
        texts = []
        while "done" not in texts:
            texts += await run.messages()
            await run.step("look", asyncio.sleep, 0.05)
        return texts

    @durable("asking")
    async def asking(run, prompt):
        if not await run.approve("charge", {"cents": 500}):
            return "denied"
        colour = await run.ask("Which colour?", ["red", "blue"])
        paid = await run.wait_for("paid")
        child = await run.child("counting", "2")
        return {"colour": colour, "paid": paid, "child": child.result}

    @durable("desk")
    async def desk(run, prompt):
        async def model():
            call = Call(id="call_1", name="refund", arguments={"cents": 5}, effect="idempotent")
            usage = Usage(input_tokens=9, output_tokens=2)
            return Answer(text="I refund.", calls=[call], provider="anthropic", usage=usage)
        answer = await run.model("claude-sonnet-4-5", model)
        [call] = answer.calls
        return await run.tool(call, lambda cents: f"{cents} refunded")

    @durable("failing")
    async def failing(run, prompt):
        await run.step("first", note, "first")
        raise ValueError("no such customer")

    @durable("deadly")
    async def deadly(run, prompt):
        await run.step("die", die, "die", effect="read")
'''
#: The agents of the package, as entry points.
ENTRIES = {
    name: f"shop_agents:{name}"
    for name in ("support", "blocking", "counting", "talking", "asking", "desk", "failing", "deadly")
}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, entries: Mapping[str, str] = ENTRIES) -> None:
    """Put the package on the path of this process, with its ledger in the same folder."""
    engine.install_package(folder, monkeypatch, "shop_agents", SOURCE, {"agents": entries})
    monkeypatch.setenv("SHOP_LEDGER", str(folder / "ledger"))


def register(project: Project) -> None:
    """Register the agents of the package, as a worker does when it starts."""
    registering.register_agents()
    assert Agent.objects.filter(project=project, provider="package").exists()


def start(project: Project, agent: str, prompt: str = "read", **options: object) -> AgentRun:
    """Create a run of a registered agent."""
    row = Agent.objects.get(project=project, slug=agent)
    return creation.create(project, row, prompt, by="test", **options)  # type: ignore[arg-type]


def words(folder: Path) -> list[str]:
    """Return the steps that were executed, in order."""
    file = folder / "ledger"
    return [line.rpartition(" ")[0] for line in file.read_text().splitlines()] if file.exists() else []


def process_ids(folder: Path) -> list[int]:
    """Return the process of each executed step, in order."""
    return [int(line.rpartition(" ")[2]) for line in (folder / "ledger").read_text().splitlines()]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process that has the package."""
    return {"PYTHONPATH": os.pathsep.join([str(folder)]), "SHOP_LEDGER": str(folder / "ledger")}


class Driving:
    """A thread that drives a run for a slice, as a Celery task does. The end of the `with` block waits for it."""

    def __init__(self, worker: Worker, run: AgentRun) -> None:
        self._worker = worker
        self._run = run
        self._thread = threading.Thread(target=self._drive, name="task", daemon=True)
        #: Whether the run was claimed.
        self.was_claimed = False

    def _drive(self) -> None:
        try:
            self.was_claimed = self._worker.drive(self._run.pk)
        finally:
            connections.close_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the run is not released"
        self._run.refresh_from_db()


def at(folder: Path, word: str, count: int = 1, *, within_s: float = 20) -> None:
    """Wait until a step was executed so many times."""
    eventually(
        lambda: words(folder).count(word) == count,
        within_s=within_s,
        why=lambda: f"only {words(folder)} were executed",
    )
