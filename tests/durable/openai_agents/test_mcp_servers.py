"""MCP servers of agents of the SDK in durable runs: their tools, and when they are connected."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent
from agents.mcp import MCPServerStdio

from agentops.client import Client
from agentops.durable.openai_agents import durable_function
from runs.models import AgentRunToolCall
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.sdk_model import ScriptedSdkModel, call, outputs, say
from tests.support.timing import eventually

SERVER = """
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("shop")

@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def find(item: str) -> str:
    return f"found {item}"

@server.tool()
def buy(item: str) -> str:
    raise ValueError(f"{item} is sold out")

server.run("stdio")
"""


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


def stdio_server(tmp_path: Path, name: str, program: str) -> MCPServerStdio:
    path = tmp_path / f"{name}.py"
    path.write_text(program)
    return MCPServerStdio(
        {"command": sys.executable, "args": [str(path)]}, name=name, client_session_timeout_seconds=60
    )


@pytest.mark.django_db
def test_tools_of_an_mcp_server(durable_site: DurableSite, tmp_path: Path) -> None:
    server = stdio_server(tmp_path, "shop", SERVER)

    def script(items: list[Any]) -> Any:
        done = outputs(items)
        return say(f"{done}") if done else [call("c1", "find", item="a chair"), call("c2", "buy", item="a table")]

    agent = Agent(name="shopper", model=ScriptedSdkModel(script), mcp_servers=[server])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("shopper", "Buy."))

    assert "found a chair" in run.result
    rows = AgentRunToolCall.objects.filter(run=run).order_by("call_id")
    assert list(rows.values_list("tool_name", "effect")) == [("find", "read"), ("buy", "at_most_once")]
    assert server.session is None


@pytest.mark.django_db
def test_no_mcp_server_stays_connected_if_another_one_cannot_connect(durable_site: DurableSite, tmp_path: Path) -> None:
    shop, broken = stdio_server(tmp_path, "shop", SERVER), stdio_server(tmp_path, "broken", "raise SystemExit(1)")
    agent = Agent(name="shopper", model=ScriptedSdkModel(lambda items: say("Hi.")), mcp_servers=[shop, broken])

    with durable_site.serving(durable_function(agent)):
        durable_site.reaches(durable_site.start("shopper", "Buy."), RunStatus.PAUSED)

    assert shop.session is None


@pytest.mark.django_db
def test_no_mcp_server_stays_connected_if_the_run_is_stopped_meanwhile(
    durable_site: DurableSite, person: Client, tmp_path: Path
) -> None:
    silent_program = "import pathlib, time; pathlib.Path(__file__).with_suffix('.began').touch(); time.sleep(60)"
    shop, silent = stdio_server(tmp_path, "shop", SERVER), stdio_server(tmp_path, "silent", silent_program)
    agent = Agent(name="shopper", model=ScriptedSdkModel(lambda items: say("Hi.")), mcp_servers=[shop, silent])

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("shopper", "Buy.")
        eventually((tmp_path / "silent.began").exists, why="the second server is being connected")
        person.stop(run.pk)
        durable_site.reaches(run, RunStatus.STOPPED)

    assert (shop.session, silent.session) == (None, None)
