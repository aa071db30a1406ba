"""Tools of real MCP servers, over stdio and HTTP, called like in the engine."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.management import call_command
from mcp.client import Client
from mcp_types import CallToolResult
from mcp_types import Tool as ServerTool

from agentops.base import schema_work
from runs.statuses import Effect
from runs.tools.base import OutcomeUnknown, ToolFailed
from runs.tools.call_limits import run_with_deadline
from runs.tools.catalogue import TOOLS
from runs.tools.mcp_servers import McpRefused, find
from runs.tools.mcp_session import McpDisconnected, McpSession
from runs.tools.mcp_toolset import McpToolset, for_agent, mismatch
from tests.support.flows import EXPENSIVE_INPUTS, EXPENSIVE_SCHEMA
from tests.support.machine import ROOT, free_port, install_node_packages
from tests.support.timing import eventually

SERVER = str(ROOT / "tests" / "support" / "programs" / "shop_server.py")
SHOP = {"command": sys.executable, "args": [SERVER], "env": {"SHOP": "1"}}

Configure = Callable[..., None]


@pytest.fixture
def configure(tmp_path: Path, settings) -> Configure:
    def write(**servers: Any) -> None:
        path = tmp_path / "mcp.json"
        path.write_text(json.dumps({"mcpServers": servers}))
        settings.AGENTOPS_MCP_SERVERS = str(path)

    return write


@pytest.fixture
def shop(configure: Configure) -> Iterator[McpToolset]:
    configure(shop={**SHOP, "effects": {"nap": "at_most_once"}, "timeout_s": 20})
    with closing(for_agent("mcp:shop", {})) as tools:
        yield tools


@pytest.fixture
def web_shop() -> Iterator[str]:
    """Run the same server over HTTP."""
    port = free_port()
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/mcp"
    try:
        eventually(lambda: answers(url), why="the server answers")
        yield url
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code > 0
    except httpx.TransportError:
        return False


def call(tools: McpToolset, ctx: Any, name: str, **arguments: Any) -> Any:
    found = tools.get(name)
    assert found is not None
    return run_with_deadline(found, ctx, arguments)


@pytest.mark.slow
def test_tools_of_a_stdio_server(shop: McpToolset, ctx) -> None:
    """Names, schemas, effects, results and media; the server gets no environment variables of the worker."""
    names = [each.name for each in shop.definitions()]
    tools = ["stock", "picture", "label", "sell", "crash", "nap", "environment"]
    assert names == [f"shop__{each}" for each in tools]
    effects = {name: shop.get(f"shop__{name}").effect for name in ("stock", "label", "sell", "nap")}
    assert effects == {
        "stock": Effect.READ,
        "label": Effect.IDEMPOTENT,
        "sell": Effect.AT_MOST_ONCE,
        "nap": Effect.AT_MOST_ONCE,
    }
    assert shop.get("shop__stock").parameters_schema["required"] == ["item"]
    assert shop.get("stock") is None

    assert call(shop, ctx, "shop__stock", item="pens").output == "7 of pens"
    assert call(shop, ctx, "shop__label", item="pen").output == "pen key-1"
    [picture] = call(shop, ctx, "shop__picture").output
    assert picture == {"kind": "binary", "data": "iVBORw0KGgo=", "media_type": "image/png"}
    failed = call(shop, ctx, "shop__sell", item="nothing")
    assert failed.is_error
    assert failed.output == "Error executing tool sell"
    assert call(shop, ctx, "shop__stock").is_error, "a missing argument"
    variables = call(shop, ctx, "shop__environment").output
    assert "SHOP" in variables
    assert "DJANGO_SETTINGS_MODULE" not in variables


def test_a_call_that_raises_a_timeout_error_ends_at_once(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling such a call for its result, for example after a socket timeout, would loop forever."""

    async def time_out(*_: Any, **__: Any) -> None:
        raise TimeoutError(110, "Connection timed out")

    configure(shop=SHOP)
    monkeypatch.setattr(Client, "call_tool", time_out)
    asked = itertools.count(1)
    with closing(McpSession(find("shop", {}))) as session:
        with pytest.raises(McpDisconnected, match="no answer in time"):
            session.call("stock", {"item": "pens"}, {}, lambda: next(asked) > 1000)

        assert next(asked) < 100
        assert not session.is_open


def test_the_tools_command_lists_the_tools_of_a_server(shop: McpToolset) -> None:
    out = io.StringIO()
    call_command("tools", "mcp:shop", stdout=out)
    rows = {line.split("\t")[0]: line.split("\t")[1] for line in out.getvalue().splitlines()}
    assert (rows["shop__stock"], rows["shop__nap"]) == ("read", "at_most_once")
    listed = io.StringIO()
    call_command("tools", stdout=listed)
    assert "mcp:shop\t\t20 s\t\tAGENTOPS_MCP_SERVERS" in listed.getvalue()


@pytest.mark.slow
def test_a_crashed_server_is_restarted_for_the_next_call(shop: McpToolset, ctx, tmp_path: Path) -> None:
    """A repeatable call fails and can be retried with a new server; another call has an unknown outcome."""
    marker = str(tmp_path / "marker")
    with pytest.raises(ToolFailed) as failed:
        call(shop, ctx, "shop__crash", marker=marker)
    assert (failed.value.error_type, failed.value.retryable) == ("mcp_disconnected", True)
    assert call(shop, ctx, "shop__crash", marker=marker).output == "recovered"

    with pytest.raises(OutcomeUnknown):
        call(shop, ctx, "shop__sell", item="crash")
    assert call(shop, ctx, "shop__sell", item="pen").output == "sold pen"


def test_tools_of_an_http_server(web_shop: str, configure: Configure, ctx) -> None:
    configure(web={"url": web_shop, "allow_private": True})
    with closing(TOOLS.resolve(["mcp:web/stock", "done"], {})) as tools:
        assert [each.name for each in tools.definitions()] == ["done", "web__stock"]
        assert call(tools, ctx, "web__stock", item="pens").output == "7 of pens"


@pytest.mark.slow
def test_a_call_over_its_time_limit_fails(configure: Configure, ctx) -> None:
    configure(shop={**SHOP, "timeout_s": 0.5})
    with closing(for_agent("mcp:shop", {})) as tools:
        tools.open()
        with pytest.raises(ToolFailed):
            call(tools, ctx, "shop__nap", seconds=30)


def test_a_published_stdio_server(configure: Configure, ctx) -> None:
    """mcp-server-time, from the package registry."""
    program = str(Path(sys.executable).with_name("mcp-server-time"))
    configure(time={"command": program, "args": ["--local-timezone=UTC"]})
    with closing(for_agent("mcp:time", {})) as tools:
        assert {"time__get_current_time", "time__convert_time"} <= {each.name for each in tools.definitions()}
        arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        assert "21:00" in call(tools, ctx, "time__convert_time", **arguments).output


@pytest.fixture(scope="module")
def everything() -> list[str]:
    """Return the command of the protocol's reference server, from npm."""
    program = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    return ["node", str(install_node_packages(ROOT / "tests" / "support" / "node" / "npm_servers") / program)]


@contextmanager
def over_http(command: list[str]) -> Iterator[dict[str, Any]]:
    port = free_port()
    env = {"PATH": os.environ["PATH"], "PORT": str(port)}
    process = subprocess.Popen(
        [*command, "streamableHttp"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: answers(f"http://127.0.0.1:{port}/mcp"), why="the server answers")
        yield {"url": f"http://127.0.0.1:{port}/mcp", "allow_private": True}
    finally:
        process.kill()
        process.wait()


def over_stdio(command: list[str]) -> AbstractContextManager[dict[str, Any]]:
    return nullcontext({"command": command[0], "args": [*command[1:], "stdio"]})


@pytest.mark.slow
@pytest.mark.parametrize("transport", [over_stdio, over_http])
def test_the_reference_server_over_stdio_and_http(
    transport: Callable[[list[str]], AbstractContextManager[dict[str, Any]]],
    everything: list[str],
    configure: Configure,
    ctx: Any,
) -> None:
    """Texts, images, structured content, invalid arguments, and a call over its time limit."""
    with transport(everything) as server:
        configure(everything={**server, "timeout_s": 5})
        with closing(TOOLS.resolve(["mcp:everything"], {})) as tools:
            assert {"everything__echo", "everything__get-sum"} <= {each.name for each in tools.definitions()}
            assert call(tools, ctx, "everything__echo", message="über 🙂").output == "Echo: über 🙂"
            assert "42" in call(tools, ctx, "everything__get-sum", a=40, b=2).output
            image = call(tools, ctx, "everything__get-tiny-image").output
            assert [part["media_type"] for part in image if isinstance(part, dict)] == ["image/png"]
            weather = call(tools, ctx, "everything__get-structured-content", location="Chicago").output
            assert json.loads(weather)["temperature"] == 36
            assert call(tools, ctx, "everything__get-sum", a="many").is_error
            with pytest.raises((ToolFailed, OutcomeUnknown)):
                call(tools, ctx, "everything__trigger-long-running-operation", duration=60, steps=2)
            assert call(tools, ctx, "everything__echo", message="still there").output == "Echo: still there"


def test_results_are_checked_with_the_schema_of_the_server_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would check them on the event loop of the session, with backtracking patterns."""
    monkeypatch.setattr(schema_work, "MAX_STEPS", 20_000)
    for schema, value, why in [
        ({"type": "object"}, {"a": 1}, ""),
        (None, None, ""),
        ({"type": "object"}, None, "/: None is not of type 'object'"),
        ({"properties": {"a": {"pattern": "(a+)+$"}}}, {"a": "a" * 50_000 + "b"}, "/a: .* does not match"),
        (EXPENSIVE_SCHEMA, EXPENSIVE_INPUTS, "too expensive for this value: the check takes more than 20000 steps"),
    ]:
        listed = ServerTool(name="get", input_schema={}, output_schema=schema)
        refused = mismatch(listed, CallToolResult(content=[], structured_content=value))
        assert (refused is None) is (why == "")
        if refused is not None:
            assert refused.is_error
            assert re.search(f"The call was made, but its result does not match .*{why}", str(refused.output))


def test_the_session_does_not_check_results(shop: McpToolset, ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toolset checks the output schema, here with a limit of one step."""
    assert "SHOP" in call(shop, ctx, "shop__environment").output
    monkeypatch.setattr(schema_work, "MAX_STEPS", 1)
    assert "too expensive" in call(shop, ctx, "shop__environment").output
    assert call(shop, ctx, "shop__stock", item="pens").is_error


AGENTS = {
    "a command": ({"command": "sh"}, "'command' is only allowed in the file AGENTOPS_MCP_SERVERS"),
    "headers": ({"url": "https://example.com/mcp", "headers": {"a": "b"}}, "'headers' is only allowed in the file"),
    "an exception": ({"url": "http://127.0.0.1:9/mcp", "allow_private": True}, "'allow_private' is only allowed"),
    "a private address": ({"url": "https://10.0.0.1/mcp"}, "the address 10.0.0.1 is not public"),
    "plain HTTP": ({"url": "http://example.com/mcp"}, "the scheme 'http' is not allowed"),
    "another port": ({"url": "https://example.com:6379/mcp"}, "port 6379 is not allowed"),
    "nothing": ({}, "either command or url is required"),
    "no object": (["sh"], "Input should be"),
}


@pytest.mark.parametrize("case", AGENTS)
def test_a_definition_may_only_name_public_addresses(case: str) -> None:
    definition, reason = AGENTS[case]
    with pytest.raises(McpRefused, match=rf"settings\.mcp_servers\.docs.*{reason}"):
        TOOLS.resolve(["mcp:docs"], {"mcp_servers": {"docs": definition}})


def test_a_host_that_resolves_to_a_private_address_is_refused(ctx) -> None:
    """The name looks public; its address is checked on connection."""
    tools = TOOLS.resolve(["mcp:docs"], {"mcp_servers": {"docs": {"url": "https://localhost/mcp"}}})
    with pytest.raises(McpRefused, match=r"'docs' cannot be used: .*the address .* is not public"):
        tools.open()


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ({"command": "sh", "url": "https://example.com"}, "either command or url is required"),
        ({"command": "sh", "shell": True}, "mcp.shell: Extra inputs are not permitted"),
        ({"command": "sh", "effects": {"a": "never"}}, "mcp.effects.a: "),
    ],
)
def test_the_error_names_the_invalid_definition(definition: Any, reason: str, configure: Configure) -> None:
    configure(mcp=definition)
    with pytest.raises(McpRefused, match=f"AGENTOPS_MCP_SERVERS.*{reason}"):
        TOOLS.resolve(["mcp:mcp"], {})


def test_unknown_and_missing_servers_are_refused(configure: Configure) -> None:
    configure(gone={"command": "no-such-program"}, quits={"command": sys.executable, "args": ["-c", "pass"]})
    with pytest.raises(McpRefused, match=r"Unknown MCP server 'shop'. Known are: gone, quits."):
        TOOLS.resolve(["mcp:shop"], {})
    with pytest.raises(McpRefused, match="the program 'no-such-program' was not found"):
        TOOLS.resolve(["mcp:gone"], {}).open()
    with pytest.raises(McpRefused, match="The MCP server 'quits' cannot be used"):
        TOOLS.resolve(["mcp:quits"], {}).open()


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_terminated(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers neither the connection nor the listing of tools."""
    monkeypatch.setattr("runs.tools.mcp_session.CONNECT_S", 1.0)
    configure(mute={"command": sys.executable, "args": ["-c", "import time; time.sleep(60)"]})
    with pytest.raises(McpRefused, match="The MCP server 'mute' cannot be used: no answer in time"):
        TOOLS.resolve(["mcp:mute"], {}).open()
