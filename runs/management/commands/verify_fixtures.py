"""`agentops verify_fixtures`: check a folder of fixtures, as `agentops fixture verify` does."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from agentops.accounts.command_base import AgentopsCommand
from runs.management import fixture_folder


class Command(AgentopsCommand):
    help = fixture_folder.HELP

    def add_arguments(self, parser: CommandParser) -> None:
        fixture_folder.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        fixture_folder.verify(self, options)
