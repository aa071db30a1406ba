"""What the library's own tests of durable engines demand (its tests/durable_exec), against a site.

Each body is executed in a durable run, and after a wait again from the journal.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset, ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability, ResolveModelId, Toolset, durable_operation
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import AgentStreamEvent, ModelResponse, TextPart
from pydantic_ai.models import ModelResolutionContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.toolsets import DynamicToolset, ExternalToolset

from agentops.durable import DurableRun, durable
from agentops.durable.pydantic_ai import AgentopsDurability
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.pydantic_agents import Script, call, durable_agent, results_of

Body = Callable[[DurableRun], Awaitable[Any]]


class Twice:
    """Executes a body in a run, and again from the journal; both must return the same."""

    def __init__(self, site: DurableSite) -> None:
        self.site = site
        self.run: AgentRun | None = None

    def __call__(self, body: Body) -> Any:
        values: list[Any] = []

        @durable("body")
        async def function(run: DurableRun, prompt: str) -> None:
            values.append(await body(run))
            await run.wait_for("go", timeout_s=3600)

        with self.site.serving(function):
            self.run = self.site.reaches(self.site.start("body"), RunStatus.WAITING, RunStatus.PAUSED)
            assert self.run.status == RunStatus.WAITING, f"{self.run.error_type}: {self.run.error_message}"
            self.site.pass_deadline(self.run)
            self.site.reaches(self.run, RunStatus.PAUSED)
        assert len(values) == 2
        assert values[0] == values[1]
        return values[0]


@pytest.fixture
def twice(durable_site: DurableSite) -> Twice:
    return Twice(durable_site)


def echo() -> str:
    """Echo."""
    return "echo"


# --- Binding ---


def test_an_agent_needs_a_model() -> None:
    with pytest.raises(UserError, match="needs to have a `model`"):
        Agent(name="support", capabilities=[AgentopsDurability()])


def test_toolsets_need_unique_ids() -> None:
    with pytest.raises(UserError, match="need to have a unique `id`"):
        durable_agent(Script("x"), toolsets=[FunctionToolset([echo])])
    with pytest.raises(UserError, match="have the same `id` 'a'"):
        durable_agent(Script("x"), toolsets=[FunctionToolset([echo], id="a"), FunctionToolset(id="a")])
    shared = FunctionToolset([echo], id="a")
    assert durable_agent(Script("x"), toolsets=[shared, shared.prefixed("b")]).name == "support"


def test_one_engine_per_agent() -> None:
    with pytest.raises(UserError, match="durable execution engine"):
        durable_agent(Script("x"), capabilities=[AgentopsDurability()])


def test_the_name_of_the_capability_comes_first() -> None:
    agent = Agent(Script("x").model, capabilities=[AgentopsDurability(name="other")])
    durability = AgentopsDurability.from_agent(agent)
    assert durability is not None
    assert (durability.name, durability.get_serialization_name(), durability.in_durable_context) == (
        "other",
        None,
        False,
    )


# --- In a run ---


def test_names_of_steps_are_stable(twice: Twice) -> None:
    """Stored runs depend on these names and keys: a change needs a way to continue old runs."""
    functions = FunctionToolset([echo], id="functions")
    dynamic = DynamicToolset(lambda ctx: FunctionToolset([second]), id="dynamic")

    def second() -> str:
        return "second"

    agent = durable_agent(Script([call("echo"), call("second")], "done"), toolsets=[functions, dynamic])

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.")).output

    assert twice(body) == "done"
    assert [(key, name) for key, name, _ in steps_of(twice.run)][:-1] == [
        ("1/support__dynamic_toolset__dynamic.get_tools/1/1", "support__dynamic_toolset__dynamic.get_tools"),
        ("1/messages/1.0", "messages"),
        ("1/request/1", "model request"),
        ("call:echo", "echo"),
        ("call:second", "second"),
        ("1/support__dynamic_toolset__dynamic.get_tools/2/1", "support__dynamic_toolset__dynamic.get_tools"),
        ("1/request/2", "model request"),
        ("1/end/3.0", "messages"),
    ]


@pytest.mark.slow
def test_ids_of_runs_and_conversations_are_stable(twice: Twice) -> None:
    agent = durable_agent(Script("done"))

    async def body(run: DurableRun) -> Any:
        first, second = await agent.run("Go."), await agent.run("Go.", run_id="mine")
        assert first.run_id == f"{run.id}:1"
        return [first.run_id, first.conversation_id, second.run_id, second.conversation_id]

    assert twice(body)[2] == "mine"


@pytest.mark.slow
def test_the_run_is_iterated_and_streamed(twice: Twice) -> None:
    script = Script([call("echo")], "all done")
    agent = Agent(script.streaming, name="support", capabilities=[AgentopsDurability()])
    agent.tool_plain(echo)

    async def body(run: DurableRun) -> Any:
        nodes: list[str] = []
        async with agent.iter("Go.") as iteration:
            async for node in iteration:
                nodes.append(type(node).__name__)
        async with agent.run_stream("Go.") as stream:
            return [nodes, await stream.get_output()]

    nodes, output = twice(body)
    assert (nodes[0], nodes[-1], output.strip()) == ("UserPromptNode", "End", "all done")
    assert len(script.requests) == 4


def test_models_that_are_registered(twice: Twice) -> None:
    """By key, by instance, wrapped, by an alias that depends on the run; others are refused."""
    default, other = Script("default"), Script("other")
    aliases: list[str] = []

    def resolve(ctx: ModelResolutionContext[str], model_id: str) -> Any:
        aliases.append(f"{model_id} for {ctx.deps}")
        return TestModel(custom_output_text=f"alias for {ctx.deps}") if model_id == "alias" else None

    other_model = other.model
    agent = durable_agent(
        default, deps_type=str, capabilities=[ResolveModelId(resolve)], durability={"models": {"other": other_model}}
    )

    async def body(run: DurableRun) -> Any:
        outputs = [
            (await agent.run("Go.", deps="ada", model=model)).output
            for model in (None, "other", other_model, WrapperModel(other_model), "alias")
        ]
        with pytest.raises(UserError, match="was not registered with `AgentopsDurability`"):
            await agent.run("Go.", deps="ada", model=Script("x").model)
        with agent.override(model=other_model):
            return [*outputs, (await agent.run("Go.", deps="ada")).output]

    assert twice(body) == ["default", "other", "other", "other", "alias for ada", "other"]
    assert (len(default.requests), len(other.requests)) == (1, 4)


def test_toolsets_of_a_run(twice: Twice) -> None:
    """External ones, and tools without steps, may be added to a run; toolsets with steps may not."""
    script = Script([call("inline")], "done")
    agent = durable_agent(script)
    inline = FunctionToolset[Any](id="inline")

    @inline.tool_plain(name="inline", metadata={"agentops": False})
    async def add() -> str:
        return "added"

    async def body(run: DurableRun) -> Any:
        output = (await agent.run("Go.", toolsets=[ExternalToolset([], id="outside"), inline])).output
        for toolset in (FunctionToolset([echo], id="late"), DynamicToolset(lambda ctx: None, id="late")):
            with pytest.raises(UserError, match="cannot be added at runtime"):
                await agent.run("Go.", toolsets=[toolset])
        with pytest.raises(UserError, match="cannot be added at runtime"):
            await agent.run("Go.", capabilities=[Toolset(FunctionToolset([echo], id="late"))])
        return output

    assert twice(body) == "done"
    assert results_of(script.requests[-1]) == {"inline": "added"}


@pytest.mark.slow
def test_steps_refuse_values_that_a_replay_would_lose(twice: Twice) -> None:
    refusals: list[str] = []

    def try_both(ctx: RunContext[Any]) -> None:
        for method in (lambda: ctx.enqueue("later"), ctx.cancel):
            try:
                method()
            except UserError as error:
                refusals.append(str(error))

    agent = durable_agent(Script([call("work")], "done"))

    @agent.tool
    def work(ctx: RunContext[Any]) -> str:
        try_both(ctx)
        return "worked"

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.")).output

    assert twice(body) == "done"
    assert ["not supported inside a durable step" in text for text in refusals] == [True, True]


@pytest.mark.slow
def test_a_retry_of_the_model_does_not_retry_the_step(twice: Twice) -> None:
    attempts: list[str] = []

    def strict(number: int) -> int:
        attempts.append(f"strict {number}")
        if number == 1:
            raise ModelRetry("give 2")
        return number

    dynamic = DynamicToolset(lambda ctx: FunctionToolset([strict]).prefixed("d"), id="dynamic")
    script = Script(
        [call("strict", "a", number=1), call("d_strict", "b", number=1)],
        [call("strict", "c", number=2), call("d_strict", "d", number=2)],
        "done",
    )
    agent = durable_agent(script, toolsets=[dynamic], retries=2)
    agent.tool_plain(metadata={"agentops": {"retries": 3}})(strict)

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.")).output

    assert twice(body) == "done"
    assert sorted(attempts) == ["strict 1"] * 2 + ["strict 2"] * 2


@pytest.mark.slow
def test_retries_of_a_step(twice: Twice) -> None:
    attempts: list[str] = []
    agent = durable_agent(Script([call("flaky")], "done"))

    @agent.tool_plain(metadata={"agentops": {"retries": 2, "effect": "idempotent"}})
    def flaky() -> str:
        attempts.append("attempt")
        if len(attempts) < 3:
            raise ConnectionError("reset")
        return "worked"

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.")).output

    assert twice(body) == "done"
    assert len(attempts) == 3


def test_events(twice: Twice) -> None:
    """A handler gets all events once: from the model live, and identical ones each time."""
    kinds: list[str] = []

    async def handle(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            kinds.append(event.event_kind)

    script = Script([call("echo", "a"), call("echo", "b")], "done")
    durability = AgentopsDurability[None](event_stream_handler=handle)
    agent = Agent(script.streaming, name="support", capabilities=[durability])
    agent.tool_plain(echo)

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.")).output

    assert twice(body).strip() == "done"
    assert kinds.count("function_tool_call") == kinds.count("function_tool_result") == 2
    assert "part_start" in kinds


class Ledger(AbstractCapability[Any]):
    """A capability whose operation is durable."""

    id = "ledger"

    def __init__(self) -> None:
        self.entries: list[int] = []

    async def before_run(self, ctx: RunContext[Any]) -> None:
        assert await self.add(ctx, 7) == 1

    @durable_operation("add")
    async def add(self, ctx: RunContext[Any], cents: int) -> int:
        self.entries.append(cents)
        return len(self.entries)


def test_operations_of_capabilities_are_steps(twice: Twice) -> None:
    ledger = Ledger()
    agent = durable_agent(Script("done"), capabilities=[ledger])

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.")).output

    assert twice(body) == "done"
    assert ledger.entries == [7]


@pytest.mark.slow
def test_an_answer_in_parts_is_one_step_each(twice: Twice) -> None:
    """A model that suspends its response gets a second request; each part is stored."""
    first = ModelResponse(parts=[TextPart("half ")], state="suspended", provider_name="anthropic")
    second = ModelResponse(parts=[TextPart("done")], provider_name="anthropic")
    script = Script(first, second)
    agent = durable_agent(script)

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.")).output

    assert twice(body).endswith("done")
    assert len(script.requests) == 2


@pytest.mark.slow
def test_a_time_limit_counts_from_the_first_execution(twice: Twice) -> None:
    agent = durable_agent(Script("done"))

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.", timeout=3600)).output

    assert twice(body) == "done"
    assert ("1/start time", "start time", "done") in steps_of(twice.run)


@pytest.mark.slow
def test_dependencies_need_not_be_storable(twice: Twice) -> None:
    script = Script([call("use")], "done")
    agent = durable_agent(script, deps_type=object)

    @agent.tool
    def use(ctx: RunContext[Any]) -> bool:
        return callable(ctx.deps)

    async def body(run: DurableRun) -> Any:
        return (await agent.run("Go.", deps=lambda: None)).output

    assert twice(body) == "done"
    assert results_of(script.requests[-1]) == {"use": True}
