"""The tools of in-process MCP servers: each call is executed by a step of the run, in the process of the function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import anyio
import mcp
import mcp.types
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from agentops.durable.answers import Effect
from agentops.durable.claude.outcomes import ToolOutcome

#: Returns the result of a call of the model, which is executed elsewhere; None if the call is not known there.
Executed = Callable[[str], Awaitable[ToolOutcome | None]]
#: The member of a request that names the call of the model.
_CALL_ID = "claudecode/toolUseId"


@dataclass(frozen=True)
class OwnTool:
    """A tool of an in-process MCP server."""

    server: Any
    name: str
    effect: Effect

    async def __call__(self, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Call the tool, and return its result. A tool that fails returns an error."""
        async with connected(self.server) as client:
            result = await client.call_tool(self.name, dict(arguments))
        return ToolOutcome.of_mcp(result.model_dump(by_alias=True, mode="json", exclude_none=True))


def servers_of(mcp_servers: object) -> dict[str, Any]:
    """Return the in-process servers of the options, by name."""
    if not isinstance(mcp_servers, dict):
        return {}
    return {
        name: config["instance"]
        for name, config in mcp_servers.items()
        if isinstance(config, dict) and config.get("type") == "sdk"
    }


async def tools_of(servers: Mapping[str, Any]) -> dict[str, OwnTool]:
    """Return the tools of in-process servers, by the names that the model uses."""
    tools: dict[str, OwnTool] = {}
    for server_name, server in servers.items():
        async with connected(server) as client:
            listed = (await client.list_tools()).model_dump(by_alias=True, mode="json", exclude_none=True)["tools"]
        for tool in listed:
            name = str(tool["name"])
            tools[f"mcp__{server_name}__{name}"] = OwnTool(server, name, _effect(tool.get("annotations") or {}))
    return tools


def _effect(annotations: Mapping[str, Any]) -> Effect:
    if annotations.get("readOnlyHint"):
        return "read"
    return "idempotent" if annotations.get("idempotentHint") else "once"


def connected(server: Any) -> AbstractAsyncContextManager[Any]:
    """Return a client that is connected to an in-process server. MCP 1 and 2 have different ones."""
    if hasattr(mcp, "Client"):
        return mcp.Client(server)
    from mcp.shared import memory

    connect: Any = memory.create_connected_server_and_client_session  # type: ignore[attr-defined,unused-ignore]
    client: AbstractAsyncContextManager[Any] = connect(server)
    return client


class ServedTools:
    """A proxy of an in-process server: calls of the model get the results of their steps.

    Every other request goes to the server.
    """

    def __init__(self, server: Any, executed: Executed) -> None:
        self._server = server
        self._executed = executed

    def create_initialization_options(self) -> Any:
        """Return the options of the server."""
        return self._server.create_initialization_options()

    async def run(self, read: Any, write: Any, options: Any, raise_exceptions: bool = False) -> None:
        """Serve requests until `read` is closed."""
        async with create_client_server_memory_streams() as (inner, served), anyio.create_task_group() as tasks:
            inner_read, inner_write = inner
            tasks.start_soon(self._server.run, *served, options, raise_exceptions)
            tasks.start_soon(_forward, inner_read, write)
            async for item in read:
                request = _call_of(item)
                if request is None:
                    await inner_write.send(item)
                else:
                    tasks.start_soon(self._answer, request, item, write, inner_write)
            tasks.cancel_scope.cancel()

    async def _answer(self, request: Mapping[str, Any], item: Any, write: Any, inner_write: Any) -> None:
        """Answer a request with the result of its step. Calls without a step go to the server."""
        outcome = await self._executed(request["params"]["_meta"][_CALL_ID])
        if outcome is None:
            await inner_write.send(item)
            return
        await write.send(_message({"jsonrpc": "2.0", "id": request["id"], "result": outcome.as_mcp()}))


async def _forward(read: Any, write: Any) -> None:
    async for item in read:
        await write.send(item)


def _call_of(item: Any) -> dict[str, Any] | None:
    """Return the JSON of a request that executes a call of the model; None for all others."""
    if isinstance(item, Exception):
        return None
    request: dict[str, Any] = item.message.model_dump(by_alias=True, mode="json", exclude_none=True)
    meta = (request.get("params") or {}).get("_meta") or {}
    return request if request.get("method") == "tools/call" and _CALL_ID in meta else None


def _message(document: dict[str, Any]) -> SessionMessage:
    types: Any = mcp.types
    if hasattr(types, "jsonrpc_message_adapter"):
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(document, by_name=False))
    return SessionMessage(types.JSONRPCMessage.model_validate(document))
