"""`agentops tools`: the tools of this installation."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from django.core.management import CommandError
from django.core.management.base import CommandParser

from agentops.accounts.command_base import EXIT_INVALID, EXIT_NOT_FOUND, EXIT_REFUSED, AgentopsCommand
from agentops.base.catalogue import CatalogueEntry, ready
from runs.management.commands.extensions import refuse_faults
from runs.tools.base import Tool
from runs.tools.catalogue import TOOLS
from runs.tools.mcp_servers import McpRefused, operators_servers
from runs.tools.mcp_toolset import PREFIX as MCP_PREFIX
from runs.tools.sandbox.switches import why_off


class Command(AgentopsCommand):
    help = (
        "List the tools that agents can call: built-in ones, those of installed packages, and those of"
        " AGENTOPS_TOOL_MODULES. The exit code is 1 if an extension cannot be used."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        what = f"show this tool, with its schema; {MCP_PREFIX}SERVER asks an MCP server for its tools"
        parser.add_argument("name", metavar="TOOL", nargs="?", help=what)
        parser.add_argument("--json", action="store_true", help="print JSON, with the schemas")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        if name is None:
            return self._list(as_json=options["json"])
        if name.startswith(MCP_PREFIX):
            return self._write(_tools_of_server(name), as_json=options["json"])
        tool = next((each for each in TOOLS.entries() if each.name == name), None)
        if tool is None:
            raise CommandError(f"tool not found: {name!r}", returncode=EXIT_NOT_FOUND)
        return self.write_json(_facts(tool))

    def _list(self, *, as_json: bool) -> None:
        self._write([*map(_facts, TOOLS.entries()), *_servers()], as_json=as_json)
        refuse_faults(TOOLS.faults())

    def _write(self, facts: list[dict[str, Any]], *, as_json: bool) -> None:
        if as_json:
            self.write_json(facts)
        else:
            headers = ["tool", "effect", "time limit", "approval", "from", "description"]
            self.write_table(headers, map(_cells, facts))


def _servers() -> list[dict[str, Any]]:
    """Return the operator's MCP servers as tools with an unknown schema."""
    try:
        servers = operators_servers()
    except McpRefused as error:
        raise CommandError(str(error), returncode=EXIT_INVALID) from error
    return [
        {"name": f"{MCP_PREFIX}{name}", "timeout_s": server.timeout_s, "source": "AGENTOPS_MCP_SERVERS"}
        for name, server in sorted(servers.items())
    ]


def _tools_of_server(name: str) -> list[dict[str, Any]]:
    """Return the tools of an MCP server, after starting or connecting to it."""
    try:
        with closing(TOOLS.resolve([name], {})) as toolset:
            names = [definition.name for definition in toolset.definitions()]
            tools = [tool for each in names if (tool := toolset.get(each)) is not None]
    except McpRefused as error:
        raise CommandError(str(error), returncode=EXIT_REFUSED) from error
    return [_facts(CatalogueEntry(tool.name, ready(tool), name)) for tool in tools]


def _facts(entry: CatalogueEntry[Tool]) -> dict[str, Any]:
    tool = entry.part
    return {
        "name": tool.name,
        "effect": tool.effect.value,
        "timeout_s": tool.timeout_s,
        "needs_approval": tool.needs_approval,
        "source": entry.source,
        "description": tool.description,
        "off": why_off(tool),
        "parameters": tool.parameters_schema,
    }


def _cells(facts: dict[str, Any]) -> list[object]:
    limit = "none" if facts["timeout_s"] is None else f"{facts['timeout_s']:g} s"
    approval = "required" if facts.get("needs_approval") else ""
    off = facts.get("off")
    summary = f"off: {off}" if off else facts.get("description", "").partition("\n")[0]
    return [facts["name"], facts.get("effect", ""), limit, approval, facts["source"], summary]
