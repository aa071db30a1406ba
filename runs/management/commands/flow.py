"""`agentops flow`: define flows, run them, and act on their runs."""

from __future__ import annotations

from agentops.projects.management.base import AddSubcommand, AgentopsCommand
from runs.management.flow import flow_options


class Command(AgentopsCommand):
    help = "Define flows, run them, watch and control their runs"

    def subcommands(self, add: AddSubcommand) -> None:
        flow_options.add_all(add)
