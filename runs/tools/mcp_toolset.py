"""The tools of one MCP server, as an agent uses them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic_ai.tools import ToolDefinition

from agentops.base.http import strict_json
from agentops.base.schema_checks import SchemaUnusable, fault_of
from runs.statuses import Effect
from runs.tools.base import Arguments, OutcomeUnknown, Tool, ToolContext, ToolFailed, ToolResult
from runs.tools.functions import parse
from runs.tools.mcp_servers import McpRefused, McpServer, find
from runs.tools.output import Output

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ToolAnnotations
    from mcp_types import Tool as ServerTool

    from runs.tools.mcp_session import McpSession


#: The prefix of a server's name in a definition.
PREFIX = "mcp:"
#: The separator between the name of the server and the name of its tool.
SEPARATOR = "__"
#: Maximum characters of the name of a tool, for providers.
MAX_NAME = 64
#: Seconds for which the list of a server's tools is cached.
LIST_S = 60.0
#: Number of cached lists at which the cache is cleared.
MAX_LISTS = 100
#: The metadata key under which the server finds the idempotency key, which identifies a repeated call.
KEY = "agentops/idempotency-key"

#: The time of each cached list, in monotonic seconds, and its tools, by the name and definition of the server.
_lists: dict[str, tuple[float, list[ServerTool]]] = {}


class McpToolset:
    """The tools of one server, or only the tool `only`. The session begins on demand, and ends with `close`."""

    def __init__(self, name: str, server: McpServer, only: str = "") -> None:
        self._name = name
        self._server = server
        self._only = only
        self._tools: dict[str, Tool] | None = None
        self._session: McpSession | None = None
        self._lock = threading.Lock()

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or None. Raises `McpRefused` if the server cannot be used."""
        return self._all().get(name) if name.startswith(f"{self._name}{SEPARATOR}") else None

    def definitions(self) -> list[ToolDefinition]:
        """Return the descriptions of the tools for the model. Raises `McpRefused` if the server cannot be used."""
        return [tool.definition for tool in self._all().values()]

    def open(self) -> None:
        """Request the list of tools, unless it is known. Raises `McpRefused` if the server cannot be used."""
        self._all()

    def close(self) -> None:
        """End the session, if any."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _all(self) -> dict[str, Tool]:
        if self._tools is None:
            tools = [self._tool(each) for each in self._listed() if self._only in ("", each.name)]
            if self._only and not tools:
                raise McpRefused(f"The MCP server {self._name!r} has no tool named {self._only!r}.")
            self._tools = {tool.name: tool for tool in tools}
        return self._tools

    def _listed(self) -> list[ServerTool]:
        """Return all tools of the server, from the cache if possible. Raises `McpRefused`."""
        from runs.tools.mcp_session import McpUnavailable

        key = f"{self._name} {self._server.model_dump_json()}"
        listed_at, tools = _lists.get(key, (float("-inf"), []))
        if time.monotonic() - listed_at < LIST_S:
            return tools
        try:
            tools = self._open().tools()
        except McpUnavailable as error:
            raise McpRefused(f"The MCP server {self._name!r} cannot be used: {error}") from error
        if len(_lists) >= MAX_LISTS:
            _lists.clear()
        _lists[key] = (time.monotonic(), tools)
        return tools

    def _open(self) -> McpSession:
        """Return the open session, or start a new one. Raises `McpUnavailable`."""
        from runs.tools.mcp_session import McpSession

        with self._lock:
            if self._session is not None and not self._session.is_open:
                self._session.close()
                self._session = None
            if self._session is None:
                self._session = McpSession(self._server)
            return self._session

    def _tool(self, listed: ServerTool) -> Tool:
        """Return a tool that calls the server's tool."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{self._name}{SEPARATOR}{listed.name}")[:MAX_NAME]
        effect = self._server.effects.get(listed.name) or effect_of(listed.annotations)

        def execute(ctx: ToolContext, arguments: Arguments) -> ToolResult:
            answer = self._call(listed.name, effect, ctx, parse(arguments))
            return mismatch(listed, answer) or result_of(answer)

        return Tool(
            name=name,
            description=listed.description or listed.title or "",
            parameters_schema=listed.input_schema,
            execute=execute,
            effect=effect,
            timeout_s=self._server.timeout_s,
        )

    def _call(self, name: str, effect: Effect, ctx: ToolContext, arguments: dict[str, Any]) -> CallToolResult:
        from runs.tools.mcp_session import McpDisconnected, McpUnavailable

        try:
            session = self._open()
        except McpUnavailable as error:
            raise ToolFailed("mcp_unavailable", str(error), retryable=True) from error
        try:
            return session.call(name, arguments, {KEY: ctx.idempotency_key}, ctx.cancelled)
        except McpDisconnected as error:
            if effect is Effect.AT_MOST_ONCE:
                raise OutcomeUnknown(str(error)) from error
            raise ToolFailed("mcp_disconnected", str(error), retryable=True) from error


def for_agent(name: str, settings: Mapping[str, Any]) -> McpToolset:
    """Return the toolset of `mcp:NAME` (all tools of a server) or `mcp:NAME/TOOL` (one tool) in a definition.

    Makes no connection. Raises `McpRefused`.
    """
    server_name, _, only = name.removeprefix(PREFIX).partition("/")
    return McpToolset(server_name, find(server_name, settings), only)


def effect_of(annotations: ToolAnnotations | None) -> Effect:
    """Return the effect that a server declares for a tool; `at_most_once` if it declares none."""
    if annotations is not None and annotations.read_only_hint:
        return Effect.READ
    if annotations is not None and annotations.idempotent_hint:
        return Effect.IDEMPOTENT
    return Effect.AT_MOST_ONCE


def mismatch(listed: ServerTool, answer: CallToolResult) -> ToolResult | None:
    """Return an error if the structured content of a result does not match the server's schema for it, or None."""
    if listed.output_schema is None or answer.is_error:
        return None
    try:
        fault = fault_of(listed.output_schema, answer.structured_content)
    except SchemaUnusable as error:
        problem = str(error)
    else:
        if fault is None:
            return None
        problem = f"{strict_json.pointer(fault.absolute_path) or '/'}: {fault.message[:200]}"
    text = f"The call was made, but its result does not match the server's own schema: {problem}"
    return ToolResult(text, is_error=True, retryable=False)


def result_of(answer: CallToolResult) -> ToolResult:
    """Return the result of a call: its texts and media, or its structured content if it has neither."""
    items = [_item(block.model_dump(mode="json")) for block in answer.content]
    output: Output = "\n".join(map(str, items)) if all(isinstance(item, str) for item in items) else items
    if not items and answer.structured_content is not None:
        output = json.dumps(answer.structured_content, ensure_ascii=False)
    return ToolResult(output, is_error=bool(answer.is_error), retryable=False)


def _item(block: dict[str, Any]) -> Any:
    """Return a content block: text as text, media in the form of pydantic-ai, and a note for other blocks."""
    match block:
        case {"type": "text", "text": text}:
            return text
        case {"type": "image" | "audio", "data": data, "mime_type": media_type}:
            return {"kind": "binary", "data": data, "media_type": media_type}
        case {"type": "resource", "resource": {"text": text}}:
            return text
    uri = block.get("uri") or (block.get("resource") or {}).get("uri")
    return f"[{block.get('type')} {uri}]" if uri else f"[{block.get('type')}]"
