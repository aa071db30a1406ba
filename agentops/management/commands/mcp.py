"""`agentops mcp`: the MCP server on standard input and output, for a coding agent on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from agentops.accounts.command_base import EXIT_UNREADABLE, EXIT_USAGE, AgentopsCommand, printable
from agentops.accounts.current_project import default_slug
from agentops.mcp_server.api_access import Api, LocalApi, SiteApi
from agentops.mcp_server.tool_server import serve


class Command(AgentopsCommand):
    help = (
        "Serve MCP on standard input and output: a coding agent on this machine reads the runs of this database,"
        " or of another site. Read-only, unless --allow-writes is given."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--project",
            metavar="SLUG",
            help="the project that tools use if they name none (default: without --url, see `agentops project use`)",
        )
        parser.add_argument("--allow-writes", action="store_true", help="offer the tools that control runs")
        parser.add_argument("--url", metavar="URL", help="read another site, with the API key in AGENTOPS_API_KEY")
        parser.add_argument("--key-file", metavar="FILE", type=Path, help="the API key of the other site")

    def handle(self, *args: Any, **options: Any) -> None:
        project = options["project"] if options["project"] or options["url"] else default_slug()[0] or None
        serve(_api(options), allows_writes=options["allow_writes"], project=project)


def _api(options: dict[str, Any]) -> Api:
    """Return the access to the site that the options name. Raises `CommandError`."""
    if not options["url"]:
        return LocalApi()
    key = _key(options["key_file"])
    if not key:
        text = "--url needs an API key of scope read, in AGENTOPS_API_KEY or --key-file"
        raise CommandError(text, returncode=EXIT_USAGE)
    try:
        return SiteApi(options["url"], key)
    except ValueError as error:
        raise CommandError(printable(error), returncode=EXIT_USAGE) from None


def _key(path: Path | None) -> str:
    """Return the API key in a file, or the one in the settings. Raises `CommandError`."""
    if path is None:
        return str(settings.AGENTOPS_API_KEY).strip()
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        raise CommandError(f"{printable(path)} cannot be read", returncode=EXIT_UNREADABLE) from None
