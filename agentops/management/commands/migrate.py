"""`agentops migrate`: Django's command, but it refuses databases that this version cannot upgrade."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.core.management.commands import migrate
from django.db import connections

from agentops.accounts.management.base import AgentopsCommand
from agentops.base.database.applied_migrations import missing_migrations


class Command(AgentopsCommand, migrate.Command):
    help = "Bring the database to the schema of this version; a database that cannot be upgraded is not changed."
    suppressed_base_arguments = set()
    # Without these, Django's parser has no --skip-checks.
    requires_system_checks = migrate.Command.requires_system_checks  # type: ignore[assignment] # other commands have none

    def add_arguments(self, parser: CommandParser) -> None:
        migrate.Command.add_arguments(self, parser)

    def handle(self, *args: Any, **options: Any) -> None:
        # --fake only writes the record, which operators use to correct it.
        if not options["fake"]:
            missing_migrations(connections[options["database"]])
        migrate.Command.handle(self, *args, **options)
