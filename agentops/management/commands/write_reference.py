"""`manage.py write_reference`: write docs/reference from the code, or check that it is up to date."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from agentops.accounts.command_base import EXIT_NOT_COMPLETED, EXIT_REFUSED, AgentopsCommand
from agentops.reference.api_pages import api_pages, events_page
from agentops.reference.client_page import client_page
from agentops.reference.durable_page import durable_page
from agentops.reference.operator_pages import commands_page, exit_codes_page, secret_kinds_page, settings_page
from runs.fixtures.fixture_files import json_schema as fixture_schema
from runs.flows.shapes import flow_schema
from timeline.event_vocabularies import agent_schema, events_schema

PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "exit-codes.md": exit_codes_page,
    "events.md": events_page,
    "client.md": client_page,
    "durable.md": durable_page,
    "secret-kinds.md": secret_kinds_page,
    "events.schema.json": lambda: _json_text(events_schema()),
    "agent-events.schema.json": lambda: _json_text(agent_schema()),
    "flow.schema.json": lambda: _json_text(flow_schema()),
    "fixture.schema.json": lambda: _json_text(fixture_schema()),
}


def _json_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


class Command(AgentopsCommand):
    help = "Write docs/reference from the code. For development, in a checkout."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a page is stale")

    def handle(self, *args: Any, **options: Any) -> None:
        directory = settings.BASE_DIR / "docs" / "reference"
        if not directory.is_dir():
            raise CommandError(f"{directory} does not exist: this is not a checkout", returncode=EXIT_REFUSED)
        pages = {name: write() for name, write in PAGES.items()}
        pages |= {f"api/{name}": text for name, text in api_pages().items()}
        stale = _stale_pages(directory, pages)
        if stale and options["check"]:
            names = ", ".join(stale)
            raise CommandError(f"stale in docs/reference: {names}; run make reference", returncode=EXIT_NOT_COMPLETED)
        (directory / "api").mkdir(exist_ok=True)
        for name in stale:
            if name in pages:
                (directory / name).write_text(pages[name], encoding="utf-8")
            else:
                (directory / name).unlink()
        self.stdout.write(f"docs/reference: {len(pages)} pages, {len(stale)} written")


def _stale_pages(directory: Path, pages: dict[str, str]) -> list[str]:
    """Return the names of pages whose file is missing or differs, and of files in `api/` for which there is no page."""
    obsolete = {f"api/{path.name}" for path in (directory / "api").glob("*.md")} - pages.keys()
    changed = [
        name
        for name, text in pages.items()
        if not (directory / name).exists() or (directory / name).read_text(encoding="utf-8") != text
    ]
    return [*changed, *sorted(obsolete)]
