"""`agentops agent`: define agents, start runs, show runs, and act on them."""

from __future__ import annotations

from agentops.accounts.command_base import AddSubcommand, AgentopsCommand
from runs.management.agent import options


class Command(AgentopsCommand):
    help = "Define agents, start runs, watch and control them"

    def subcommands(self, add: AddSubcommand) -> None:
        options.add_all(add)
