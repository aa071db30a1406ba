"""`agentops migrate`: Django's command, but it refuses databases that this version cannot upgrade."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.core.management.commands import migrate
from django.db import connections

from agentops.accounts.command_base import AgentopsCommand
from agentops.base.database.applied_migrations import missing_migrations


class Command(AgentopsCommand, migrate.Command):
    help = "Bring the database to the schema of this version; a database that cannot be upgraded is not changed."
    suppressed_base_arguments = set()
    # Django's parser only has --skip-checks if the command has checks.
    requires_system_checks = migrate.Command.requires_system_checks  # type: ignore[assignment] # other commands have none

    def add_arguments(self, parser: CommandParser) -> None:
        migrate.Command.add_arguments(self, parser)

    def handle(self, *args: Any, **options: Any) -> None:
        # With --fake, operators correct the record of applied migrations.
        if not options["fake"]:
            # Raises an error if this version cannot upgrade the database.
            missing_migrations(connections[options["database"]])
        migrate.Command.handle(self, *args, **options)
