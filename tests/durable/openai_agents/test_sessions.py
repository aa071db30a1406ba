"""Sessions of the SDK in durable runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, SQLiteSession, function_tool

from agentops.durable import DurableRun, durable
from agentops.durable.openai_agents import AgentopsRunner, AgentopsSession, durable_function
from tests.support.durable import DurableSite, steps_of
from tests.support.sdk_model import ScriptedSdkModel, call, outputs, say, user_texts

pytestmark = pytest.mark.django_db


def script(items: list[Any]) -> Any:
    """Look the last order up, and repeat it."""
    *_, last = user_texts(items)
    call_id = f"c{len(user_texts(items))}"
    if call_id not in outputs(items):
        return call(call_id, "look_up", order=last)
    return say(f"{outputs(items)[call_id]} ({len(items)} items)")


@function_tool
def look_up(order: str) -> str:
    return f"order {order} is sent"


def test_items_of_earlier_runs_come_from_the_site(durable_site: DurableSite) -> None:
    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[look_up])
    key = durable_site.site.key("read", "write")

    def session(thread: str) -> AgentopsSession:
        return AgentopsSession(thread, url=durable_site.site.url, key=key)

    function = durable_function(agent, session=lambda run: session("t1"))
    other = durable_function(agent, name="other", session=lambda run: session("t2"))
    with durable_site.serving(function, other):
        first = durable_site.completes(durable_site.start("desk", "17"))
        second = durable_site.completes(durable_site.start("desk", "18"))
        third = durable_site.completes(durable_site.start("other", "19"))

    assert first.result == "order 17 is sent (3 items)"
    assert second.result == "order 18 is sent (7 items)"
    assert third.result == "order 19 is sent (3 items)"
    first.refresh_from_db()
    assert first.labels == ["session:t1"]
    *_, earlier_call, earlier_output, earlier_text, _ = agent.model.inputs[2]
    assert (earlier_call["name"], earlier_output["output"]) == ("look_up", "order 17 is sent")
    assert earlier_text == {"role": "assistant", "content": "order 17 is sent (3 items)"}


def test_outside_of_a_run_the_site_is_read(durable_site: DurableSite) -> None:
    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[look_up])
    session = AgentopsSession("t1", url=durable_site.site.url, key=durable_site.site.key("read", "write"))
    with durable_site.serving(durable_function(agent, session=lambda run: session)):
        durable_site.completes(durable_site.start("desk", "17"))

    later = AgentopsSession("t1", url=durable_site.site.url, key=durable_site.site.key("read"))

    async def read() -> list[Any]:
        await later.add_items([{"role": "user", "content": "18"}])
        assert len(await later.get_items(2)) == 2
        assert await later.pop_item() == {"role": "user", "content": "18"}
        return await later.get_items()

    items = asyncio.run(read())
    assert [item.get("role") or item["type"] for item in items] == [
        "user",
        "function_call",
        "function_call_output",
        "assistant",
    ]


def test_another_session_is_written_once(durable_site: DurableSite, tmp_path: Path) -> None:
    """A run that waits is executed again from its beginning; its session gets each item once."""
    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[look_up])

    @durable("sql")
    async def sql(run: DurableRun, prompt: str) -> str:
        session = SQLiteSession("t1", tmp_path / "sessions.db")
        try:
            result = await AgentopsRunner.run(agent, prompt, session=session)
            await run.sleep(6)
            return f"{result.final_output} {len(await session.get_items())}"
        finally:
            session.close()

    with durable_site.serving(sql):
        run = durable_site.reaches(durable_site.start("sql", "17"), "waiting", reason="timer")
        durable_site.pass_deadline(run)
        durable_site.completes(run)

    assert run.result == "order 17 is sent (3 items) 4"
    assert "session.add_items" in {name for _, name, _ in steps_of(run)}
