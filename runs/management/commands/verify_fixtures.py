"""`agentops verify_fixtures`: check a folder of fixtures, as `agentops fixture verify` does."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from agentops.accounts.management.base import AgentopsCommand
from runs.management.recordings import verifying


class Command(AgentopsCommand):
    help = verifying.HELP

    def add_arguments(self, parser: CommandParser) -> None:
        verifying.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        verifying.verify(self, options)
