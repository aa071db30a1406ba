"""`agentops budget`: the limits of a project per day (UTC) for the total of its runs; see runs.agents.budgets."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from agentops.accounts.access import Action
from agentops.accounts.command_base import AgentopsCommand, operator
from agentops.accounts.current_project import add_project, chosen_project
from runs.actions import project_changes
from runs.agents.budgets import DAY_BUDGETS

NONE = "none"


class Command(AgentopsCommand):
    help = (
        "Show or change the daily budgets of a project (UTC). If a budget is used up, each run pauses"
        " before its next model call. Budgets of single runs are in the settings of their agent."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_project(parser, takes_word=True)
        parser.add_argument("--tokens-per-day", metavar="N", help=f'tokens sent and received, or "{NONE}"')
        parser.add_argument("--cost-usd-per-day", metavar="X", help=f'US dollars, or "{NONE}"')
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        project = chosen_project(options, Action.MANAGE)
        changes = {str(name): _value(options[name]) for name in DAY_BUDGETS if options[name] is not None}
        if changes:
            limits = project_changes.change_budgets(project, changes, by=operator())
        else:
            limits = project_changes.budgets_of(project)
        if options["json"]:
            self.write_json(limits)
        else:
            self.write_table(["budget", "limit"], sorted(limits.items()))


def _value(text: str) -> int | str | None:
    """Return a limit of tokens as a number and of money as text; None for "none". `change_budgets` checks the value."""
    if text == NONE:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
