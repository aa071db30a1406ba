"""The MCP servers of served agents: connected when the first run needs them, and closed after the last one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from agents import Agent, Handoff
from agents.mcp import MCPServer, MCPServerManager


class _Connections:
    """The connected servers of one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._users: Counter[MCPServer] = Counter()
        self._managers: dict[MCPServer, MCPServerManager] = {}

    async def open(self, servers: Sequence[MCPServer]) -> None:
        """Connect servers that are not connected yet. If one cannot be connected, none of them is kept."""
        kept: list[MCPServer] = []
        async with self._lock:
            try:
                for server in servers:
                    if server not in self._managers:
                        self._managers[server] = await _connect(server)
                    self._users[server] += 1
                    kept.append(server)
            except BaseException:  # a cancelled run does not call `close` for these servers
                await self._leave(kept)
                raise

    async def close(self, servers: Sequence[MCPServer]) -> None:
        async with self._lock:
            await self._leave(servers)

    async def _leave(self, servers: Sequence[MCPServer]) -> None:
        for server in servers:
            self._users[server] -= 1
            if not self._users[server]:
                del self._users[server]
                await self._managers.pop(server).cleanup_all()

    def has(self, server: MCPServer) -> bool:
        return server in self._managers


async def _connect(server: MCPServer) -> MCPServerManager:
    manager = MCPServerManager([server], strict=True)
    await manager.connect_all()
    if (error := manager.errors.get(server)) is None:
        return manager
    # The manager does not raise a cancellation, and leaves the half-made connection open.
    await manager.cleanup_all()
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise error
    # The connection has cancelled itself, which must not look as if the run was cancelled.
    raise ConnectionError(f"the MCP server {server.name!r} cannot be connected") from error


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = WeakKeyDictionary()


@asynccontextmanager
async def connected(agent: Agent[Any]) -> AsyncIterator[None]:
    """Keep the MCP servers of an agent, its tools and its handoffs connected.

    Servers that the program has connected are left alone.
    """
    loop = asyncio.get_running_loop()
    shared = _connections.setdefault(loop, _Connections())
    servers = [server for server in _servers(agent, set()) if shared.has(server) or not _is_connected(server)]
    await shared.open(servers)
    try:
        yield
    finally:
        await shared.close(servers)


def _servers(agent: Any, seen: set[int]) -> list[MCPServer]:
    if not isinstance(agent, Agent) or id(agent) in seen:
        return []
    seen.add(id(agent))
    servers = list(agent.mcp_servers)
    for target in agent.handoffs:
        ref = target._agent_ref if isinstance(target, Handoff) else None
        servers += _servers(ref() if ref is not None else target, seen)
    for tool in agent.tools:
        servers += _servers(getattr(tool, "_agent_instance", None), seen)
    return list(dict.fromkeys(servers))


def _is_connected(server: MCPServer) -> bool:
    return getattr(server, "session", None) is not None
