"""`agentops agent`: define agents and show them. Commands for runs are in `agentops run`; former names still work."""

from __future__ import annotations

from agentops.accounts.command_base import AddSubcommand, AgentopsCommand
from runs.management.agent import options


class Command(AgentopsCommand):
    help = "Define agents and show them; `agentops run` starts them"

    def subcommands(self, add: AddSubcommand) -> None:
        options.add_agent_commands(add)
