"""Durable functions wait without a process, and are executed again from their journal when they continue."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from agentops.client import Client
from agentops.durable import ChildRun, Denied, DurableRun, StepFailed, StepTimeout, SyncDurableRun, durable
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.timing import eventually

WAITING, COMPLETED, PAUSED = RunStatus.WAITING, RunStatus.COMPLETED, RunStatus.PAUSED


class Counter:
    """A step that counts its executions."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture
def person(durable_site: DurableSite) -> Any:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


@pytest.mark.parametrize("approves", [True, False])
def test_a_person_approves(durable_site: DurableSite, person: Client, approves: bool) -> None:
    plan, charge = Counter(), Counter()

    @durable("nightly")
    async def nightly(run: DurableRun, prompt: str) -> str:
        await run.step("plan", plan)
        if decision := await run.approve("charge", {"cents": 500}):
            await run.step("charge", charge)
        return f"{decision.approved} {decision.message}"

    with durable_site.serving(nightly):
        run = durable_site.reaches(durable_site.start("nightly"), WAITING)
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        assert (approval.tool_name, approval.arguments) == ("charge", {"cents": 500})
        if approves:
            person.approve(run.pk, approval.call_id)
        else:
            person.deny(run.pk, approval.call_id, "too much")
        durable_site.completes(run)

    assert run.result == ("True " if approves else "False too much")
    assert (plan.count, charge.count) == (1, int(approves))


def test_a_synchronous_function_waits_too(durable_site: DurableSite, person: Client) -> None:
    plan = Counter()

    @durable("sync")
    def sync(run: SyncDurableRun, prompt: str) -> str:
        run.step("plan", plan)
        answer = run.ask("Which branch?", ["main", "dev"])
        return f"{answer} {run.approve('merge').approved} {run.step('count', plan)}"

    with durable_site.serving(sync):
        run = durable_site.reaches(durable_site.start("sync"), WAITING, reason="input")
        [question] = person.approvals(run_id=str(run.pk), kind="question")
        assert question.arguments == {"question": "Which branch?", "choices": ["main", "dev"]}
        person.reply(run.pk, "dev")
        durable_site.reaches(run, WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), kind="approval", state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    assert run.result == "dev True 2"


def test_sleeps(durable_site: DurableSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short sleep keeps the process, a longer one releases the run."""
    count = Counter()

    @durable("sleepy")
    async def sleepy(run: DurableRun, prompt: str) -> int:
        await run.sleep(0.05)
        await run.step("first", count)
        monkeypatch.setattr("agentops.durable.run.SHORT_SLEEP_S", 0)
        await run.sleep(6)
        return int(await run.step("second", count))

    with durable_site.serving(sleepy):
        run = durable_site.reaches(durable_site.start("sleepy"), WAITING, reason="timer")
        assert [state for _, _, state in steps_of(run)] == ["done", "done", "started"]
        durable_site.pass_deadline(run)
        durable_site.completes(run)

    assert (run.result, count.count) == ("2", 2)


def test_signals(durable_site: DurableSite) -> None:
    @durable("shop")
    async def shop(run: DurableRun, prompt: str) -> Any:
        early = await run.wait_for("paid")
        late = await run.wait_for("sent", timeout_s=3600)
        try:
            await run.wait_for("returned", timeout_s=3600)
        except StepTimeout as error:
            return [early, late, error.type]

    def send(run: AgentRun, name: str, payload: Any) -> None:
        path = f"/api/projects/{durable_site.site.project.slug}/agent-runs/{run.pk}/signals"
        headers = {"Authorization": f"Bearer {durable_site.site.key('write')}"}
        body = {"name": name, "payload": payload}
        answer = httpx.post(durable_site.site.url + path, json=body, headers=headers)
        assert answer.is_success, answer.text

    with durable_site.serving(shop):
        run = durable_site.reaches(durable_site.start("shop"), WAITING, reason="signal")
        send(run, "sent", {"by": "post"})
        send(run, "paid", {"cents": 500})
        durable_site.at_step(run, "returned")
        durable_site.reaches(run, WAITING, reason="signal")
        durable_site.pass_deadline(run)
        durable_site.completes(run)

    assert "".join(run.result.split()) == '[{"cents":500},{"by":"post"},"timeout"]'


def test_children(durable_site: DurableSite) -> None:
    """Both children run at the same time, although the parent waits for them."""
    both = asyncio.Event()
    present: list[str] = []

    @durable("child")
    async def child(run: DurableRun, prompt: str) -> str:
        present.append(prompt)
        if len(present) == 2:
            both.set()
        await run.step("meet", asyncio.wait_for, both.wait(), 60)
        if prompt == "b":
            raise ValueError("no b")
        return f"did {prompt}"

    @durable("parent")
    async def parent(run: DurableRun, prompt: str) -> Any:
        children = await asyncio.gather(run.child("child", "a"), run.child("child", "b"))
        assert all(isinstance(child, ChildRun) for child in children)
        try:
            await run.child("nobody", "c")
        except StepFailed as error:
            return [[child.status, child.result] for child in children] + [error.type]

    with durable_site.serving(parent, child):
        run = durable_site.start("parent")
        stopped = AgentRun.objects.filter(parent_run=run, prompt="b")
        eventually(lambda: stopped.filter(status=PAUSED).exists(), why="the child b has failed")
        with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
            client.stop(stopped.get().pk)
        durable_site.completes(run)

    assert "".join(run.result.split()) == '[["completed","dida"],["stopped",""],"child_refused"]'


def test_messages(durable_site: DurableSite, person: Client) -> None:
    @durable("chat")
    async def chat(run: DurableRun, prompt: str) -> str:
        first = await run.messages()
        await run.wait_for("go")
        return f"{first} {await run.messages()} {await run.messages()}"

    with durable_site.serving(chat):
        run = durable_site.reaches(durable_site.start("chat"), WAITING)
        person.send(run.pk, "Hurry")
        path = f"/api/projects/{durable_site.site.project.slug}/agent-runs/{run.pk}/signals"
        headers = {"Authorization": f"Bearer {durable_site.site.key('write')}"}
        assert httpx.post(durable_site.site.url + path, json={"name": "go"}, headers=headers).is_success
        durable_site.completes(run)

    assert run.result == "[] ['Hurry'] []"


def test_a_rule_of_the_site_denies_or_holds_a_step(durable_site: DurableSite, person: Client) -> None:
    """While a step waits for a person, the other branches finish their steps."""
    slow, refund = Counter(), Counter()
    released = asyncio.Event()

    async def wait() -> int:
        await released.wait()
        return slow()

    @durable("shop", max_steps=50)
    async def shop(run: DurableRun, prompt: str) -> str:
        try:
            await run.step("delete", Counter())
        except Denied as error:
            reason = error.message
        values = await asyncio.gather(run.step("slow", wait), run.step("refund", lambda cents: refund() + cents, 1))
        return f"{reason} {values}"

    with durable_site.serving(shop) as process:
        durable_site.set_rules(
            "shop",
            {"tools": "delete", "action": "deny", "reason": "not today"},
            {"tools": "refund", "action": "ask"},
        )
        run = durable_site.start("shop")
        durable_site.at_step(run, "slow")
        assert refund.count == 0
        process.call(released.set)
        durable_site.reaches(run, WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.approve(run.pk, approval.call_id, arguments={"cents": 9})
        durable_site.completes(run)

    assert run.result == "Denied by an approval rule: not today [1, 10]"
    assert (slow.count, refund.count) == (1, 1)
