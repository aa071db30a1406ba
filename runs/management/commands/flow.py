"""`agentops flow`: define flows, run them, and act on their runs."""

from __future__ import annotations

from agentops.accounts.command_base import AddSubcommand, AgentopsCommand
from runs.management import flow_commands


class Command(AgentopsCommand):
    help = "Define flows, run them, watch and control their runs"

    def subcommands(self, add: AddSubcommand) -> None:
        flow_commands.add_all(add)
