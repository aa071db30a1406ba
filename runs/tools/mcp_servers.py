"""The MCP servers that agents may use.

The operator defines servers in the file AGENTOPS_MCP_SERVERS. An agent's settings may also define servers, but no
commands, only public HTTPS addresses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from django.conf import settings as site
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentops.base.http import strict_json
from agentops.base.http.address_policy import DEFAULT_PORTS, HttpPolicy, UrlNotAllowed, check_url
from runs.statuses import Effect

#: The name of a server in a definition: `mcp:NAME`.
NAME = re.compile(r"[A-Za-z0-9-]{1,32}")
#: Maximum bytes of a response.
MAX_ANSWER = 16 * 1024 * 1024
#: Seconds until a server must answer, unless its definition has another limit.
DEFAULT_TIMEOUT_S = 60.0


class McpRefused(ValueError):
    """An MCP server is unknown, or its definition is invalid or not allowed."""


class McpServer(BaseModel):
    """A server: a command that speaks MCP on standard input and output, or a URL of the Streamable HTTP transport."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    command: str = ""
    args: tuple[str, ...] = Field(default=(), strict=False)
    #: Environment variables for the command. It gets PATH, HOME, LANG and a few others too, but no further variables of
    #: the worker.
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    timeout_s: Annotated[float, Field(gt=0, le=3600, strict=False)] = DEFAULT_TIMEOUT_S
    #: Effects by the name of a tool. They override the effects that the server declares.
    effects: dict[str, Annotated[Effect, Field(strict=False)]] = {}
    #: Allows private addresses, plain HTTP and any port.
    allow_private: bool = False

    @model_validator(mode="after")
    def _check_transport(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("either command or url is required")
        if self.url:
            check_url(self.url, self.policy)
        return self

    @property
    def policy(self) -> HttpPolicy:
        """The rules for requests to the server."""
        port = re.search(r"^https?://[^/?#]*:([0-9]{1,5})(?:[/?#]|$)", self.url)
        ports = [int(port[1])] if port and self.allow_private else list(DEFAULT_PORTS.values())
        return HttpPolicy(
            allow_http=self.allow_private,
            allow_private=self.allow_private,
            extra_ports=ports,
            total_timeout_s=self.timeout_s,
            max_bytes=MAX_ANSWER,
        )


def find(name: str, agent_settings: Mapping[str, Any]) -> McpServer:
    """Return the server `name` of the operator, or else of the agent's settings. Raises `McpRefused`."""
    of_operator = operators_servers()
    if name in of_operator:
        return of_operator[name]
    of_agent = agent_settings.get("mcp_servers", {})
    if not isinstance(of_agent, Mapping):
        raise McpRefused("settings.mcp_servers must be an object")
    if name not in of_agent:
        names = ", ".join(sorted([*of_operator, *map(str, of_agent)])) or "none"
        raise McpRefused(f"Unknown MCP server {name!r}. Known are: {names}.")
    definition, place = of_agent[name], "settings.mcp_servers"
    if isinstance(definition, Mapping) and (refused := sorted(set(definition) - {"url", "timeout_s"})):
        raise McpRefused(f"{place}.{name}: {refused[0]!r} is only allowed in the file AGENTOPS_MCP_SERVERS")
    return _checked(name, place, definition)


def operators_servers() -> dict[str, McpServer]:
    """Return the servers of the file AGENTOPS_MCP_SERVERS. Raises `McpRefused` if it is unreadable."""
    path = site.AGENTOPS_MCP_SERVERS
    if not path:
        return {}
    try:
        parsed = strict_json.parse(Path(path).read_bytes(), strict_json.FILE)
    except (OSError, strict_json.NotJson) as error:
        raise McpRefused(f"AGENTOPS_MCP_SERVERS cannot be read: {error}") from error
    servers = parsed.get("mcpServers") if isinstance(parsed, dict) else None
    if not isinstance(servers, dict):
        raise McpRefused("AGENTOPS_MCP_SERVERS: the file must be a JSON object with the member mcpServers")
    return {name: _checked(name, "AGENTOPS_MCP_SERVERS", definition) for name, definition in servers.items()}


def _checked(name: str, place: str, definition: object) -> McpServer:
    """Return a server from its definition. `place` names, in errors, where it is defined. Raises `McpRefused`."""
    if not NAME.fullmatch(name):
        raise McpRefused(f"{place}: a server cannot be named {name[:64]!r}; use 1 to 32 of A-Z a-z 0-9 -")
    try:
        return McpServer.model_validate(definition)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, (name, *first["loc"])))
        raise McpRefused(f"{place}.{where}: {first['msg'].removeprefix('Value error, ')}") from error
    except UrlNotAllowed as error:
        raise McpRefused(f"{place}.{name}.url: {error.reason}") from error
