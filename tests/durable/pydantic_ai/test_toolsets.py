"""Toolsets of durable agents: wrapped ones, MCP servers, dynamic ones; and calls that child runs execute."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.capabilities import SetToolMetadata
from pydantic_ai.exceptions import UserError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, ToolsetTool, WrapperToolset
from pydantic_core import SchemaValidator, core_schema

from agentops.client import Client
from agentops.durable import durable
from agentops.durable.pydantic_ai import durable_function
from agentops.durable.pydantic_ai.tool_options import ToolOptions, options_of
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import Effect, RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.pydantic_agents import Script, call, durable_agent, results_of

WAITING, PAUSED = RunStatus.WAITING, RunStatus.PAUSED


class Files:
    """Tools that count their calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.toolset = FunctionToolset[Any](id="files")
        self.toolset.add_function(self.read, metadata={"agentops": {"effect": "read"}})
        self.toolset.add_function(self.write)
        self.toolset.add_function(self.delete)

    def read(self) -> str:
        self.calls["read"] += 1
        return "content"

    def write(self) -> str:
        self.calls["write"] += 1
        return "written"

    def delete(self) -> str:
        self.calls["delete"] += 1
        return "deleted"


class Loud(WrapperToolset[Any]):
    """Changes the results of tools."""

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any) -> Any:
        return str(await super().call_tool(name, tool_args, ctx, tool)).upper()


def approve_wait(durable_site: DurableSite, person: Client, run: AgentRun) -> None:
    durable_site.reaches(run, WAITING, PAUSED)
    assert run.status == WAITING, run.error_message
    [approval] = person.approvals(run_id=str(run.pk), state="pending")
    person.approve(run.pk, approval.call_id)


def test_wrapped_toolsets(durable_site: DurableSite, person: Client) -> None:
    files = Files()
    allowed = files.toolset.filtered(lambda ctx, tool: tool.name != "delete")
    script = Script([call("fs_read"), call("fs_write"), call("fs_delete")], [call("wait")], "done")
    metadata = SetToolMetadata(tools=["fs_write"], agentops={"effect": "idempotent"})
    agent = durable_agent(script, toolsets=[Loud(allowed.prefixed("fs"))], capabilities=[metadata])
    agent.tool_plain(requires_approval=True, name="wait")(lambda: "waited")

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        approve_wait(durable_site, person, run)
        durable_site.completes(run)

    assert files.calls == {"read": 1, "write": 1}
    results = results_of(script.requests[-1])
    assert (results["fs_read"], results["fs_write"], results["wait"]) == ("CONTENT", "WRITTEN", "waited")
    effects = dict(AgentRunToolCall.objects.filter(run=run).values_list("tool_name", "effect"))
    assert (effects["fs_read"], effects["fs_write"]) == (Effect.READ, Effect.IDEMPOTENT)


SERVER = """
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("shop", instructions="Prices are in cents.")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def price(item: str) -> int:
    return len(item) * 100


@server.tool()
def order(item: str) -> str:
    with open(LOG, "a") as log:
        log.write(item + "\\n")
    return f"ordered {item}"


server.run("stdio")
"""


def test_an_mcp_server(durable_site: DurableSite, person: Client, tmp_path: Path) -> None:
    """A server in a process: its tools are steps, it declares their effects, and nothing is repeated."""
    log = tmp_path / "orders"
    (tmp_path / "server.py").write_text(SERVER.replace("LOG", repr(str(log))))
    transport = StdioTransport(sys.executable, [str(tmp_path / "server.py")])
    shop = MCPToolset[Any](transport, id="shop", include_instructions=True, init_timeout=60)
    script = Script([call("price", item="tea")], [call("order", item="tea")], [call("wait")], "done")
    agent = durable_agent(script, toolsets=[shop])
    agent.tool_plain(requires_approval=True, name="wait")(lambda: "waited")

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        approve_wait(durable_site, person, run)
        durable_site.completes(run)

    assert log.read_text() == "tea\n"
    results = results_of(script.requests[-1])
    assert (results["price"], results["order"]) == (300, "ordered tea")
    effects = dict(AgentRunToolCall.objects.filter(run=run).values_list("tool_name", "effect"))
    assert (effects["price"], effects["order"]) == (Effect.READ, Effect.AT_MOST_ONCE)
    listings = [name for _, name, _ in steps_of(run) if name.endswith("get_tools")]
    assert listings == ["support__mcp_server__shop.get_tools"]


@pytest.mark.slow
def test_a_dynamic_toolset(durable_site: DurableSite, person: Client) -> None:
    files = Files()
    script = Script([call("read")], [call("wait")], "done")
    agent = durable_agent(script, toolsets=[DynamicToolset(lambda ctx: files.toolset, id="by-tenant")])
    agent.tool_plain(requires_approval=True, name="wait")(lambda: "waited")

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        approve_wait(durable_site, person, run)
        durable_site.completes(run)

    assert files.calls == {"read": 1}
    assert results_of(script.requests[-1])["read"] == "content"


@pytest.mark.slow
def test_a_validator_of_arguments_is_called_once(durable_site: DurableSite, person: Client) -> None:
    script = Script([call("pay", cents=5), call("pay", "p2", cents=6)], [call("wait")], "done")
    agent = durable_agent(script)
    checked: list[int] = []

    def check(ctx: RunContext[None], cents: int) -> None:
        checked.append(cents)

    agent.tool_plain(requires_approval=True, name="wait")(lambda: "waited")

    @agent.tool_plain(args_validator=check)
    def pay(cents: int) -> int:
        return cents

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        approve_wait(durable_site, person, run)
        durable_site.completes(run)

    assert sorted(checked) == [5, 6]


def test_a_call_that_a_child_run_executes(durable_site: DurableSite) -> None:
    """Two calls in parallel: each is a child run of the other agent. Outside of a run, the function is called."""
    script = Script([call("research", "r1", question="tides"), call("research", "r2", question="moon")], "done")
    researcher = durable_agent(Script([call("look")], "It is known."), "researcher")
    researcher.tool_plain(name="look")(lambda: "seen")
    agent = durable_agent(script)

    @agent.tool_plain(metadata={"agentops": {"child": "researcher"}})
    async def research(question: str) -> str:
        return (await researcher.run(question)).output

    with durable_site.serving(durable_function(agent), durable_function(researcher)):
        run = durable_site.completes(durable_site.start("support"))

    children = AgentRun.objects.filter(parent_run=run).order_by("prompt")
    assert [(child.prompt, child.result) for child in children] == [
        ("moon", "It is known."),
        ("tides", "It is known."),
    ]
    calls = AgentRunToolCall.objects.filter(run=run).order_by("call_id")
    assert [(row.call_id, row.child_run.prompt) for row in calls] == [("r1", "tides"), ("r2", "moon")]
    assert results_of(script.requests[-1]) == {"research": "It is known."}
    assert asyncio.run(agent.run("Go.")).output == "done"


@pytest.mark.slow
def test_a_denied_delegation(durable_site: DurableSite, person: Client) -> None:
    script = Script([call("research", question="tides")], "done")
    agent = durable_agent(script)

    @agent.tool_plain(requires_approval=True, metadata={"agentops": {"child": "support"}})
    async def research(question: str) -> str:
        return "never"

    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("support"), WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.deny(run.pk, approval.call_id, "too expensive")
        durable_site.completes(run)

    assert "too expensive" in results_of(script.requests[-1])["research"]
    assert not AgentRun.objects.filter(parent_run=run).exists()


def test_an_agent_that_is_called_in_a_tool_without_a_step(durable_site: DurableSite, person: Client) -> None:
    """The steps of the inner agent are steps of the same run."""
    inner = Script([call("wait")], "inner done")
    script = Script([call("delegate")], "done")
    critic, agent = durable_agent(inner, "critic"), durable_agent(script)
    critic.tool_plain(requires_approval=True, name="wait")(lambda: "waited")

    @agent.tool_plain(metadata={"agentops": False})
    async def delegate() -> str:
        return (await critic.run("Check.")).output

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        approve_wait(durable_site, person, run)
        durable_site.completes(run)

    assert results_of(script.requests[-1]) == {"delegate": "inner done"}
    assert (len(inner.requests), len(script.requests)) == (2, 2)


def test_options_of_tools() -> None:
    def options(**metadata: Any) -> Any:
        return options_of(ToolDefinition(name="t", metadata=metadata))

    assert options() == options_of(None) == ToolOptions(effect="once")
    assert options(annotations={"readOnlyHint": True}) == ToolOptions(effect="read")
    assert options(annotations={"idempotentHint": True}, agentops={"effect": "once"}) == ToolOptions(effect="once")
    assert options(agentops=False) is False
    for wrong in ({"efect": "read"}, "read"):
        with pytest.raises(UserError, match="the tool 't' has the metadata"):
            options(agentops=wrong)
    with pytest.raises(UserError, match="the effect 'never'"):
        options(agentops={"effect": "never"})


def test_toolsets_that_are_added_later_are_refused(durable_site: DurableSite) -> None:
    script = Script("done")
    agent = durable_agent(script)

    @durable("late")
    async def late(run: Any, prompt: str) -> str:
        try:
            await agent.run(prompt, toolsets=[Files().toolset])
        except UserError as error:
            return str(error)
        return "executed"

    with durable_site.serving(late):
        assert "cannot be added at runtime with agentops" in durable_site.completes(durable_site.start("late")).result


class Registry(AbstractToolset[Any]):
    """A toolset of another class: it implements the listing and the calls itself."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    @property
    def id(self) -> str:
        return "registry"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        tool = ToolDefinition(name="register", parameters_json_schema=schema)
        validator = SchemaValidator(core_schema.dict_schema())
        return {"register": ToolsetTool(toolset=self, tool_def=tool, max_retries=1, args_validator=validator)}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any) -> Any:
        self.calls.append(tool_args)
        return f"{name}ed {tool_args['name']}"


@pytest.mark.slow
def test_a_toolset_of_another_class(durable_site: DurableSite, person: Client) -> None:
    registry = Registry()
    script = Script([call("register", name="ada")], [call("wait")], "done")
    agent = durable_agent(script, toolsets=[registry])
    agent.tool_plain(requires_approval=True, name="wait")(lambda: "waited")

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        approve_wait(durable_site, person, run)
        durable_site.completes(run)

    assert registry.calls == [{"name": "ada"}]
    assert results_of(script.requests[-1])["register"] == "registered ada"
