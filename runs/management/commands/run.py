"""`agentops run`: start runs, list and show runs, and act on them."""

from __future__ import annotations

from agentops.accounts.command_base import AddSubcommand, AgentopsCommand
from runs.management.agent import options


class Command(AgentopsCommand):
    help = "Start runs, watch and control them"

    def subcommands(self, add: AddSubcommand) -> None:
        options.add_run_commands(add)
