"""`agentops second_factor`: remove the second factor of a user who has lost it."""

from __future__ import annotations

from typing import Any

from agentops.accounts.command_base import AddSubcommand, AgentopsCommand, operator
from agentops.accounts.memberships import find_user_by_name


class Command(AgentopsCommand):
    help = "Remove the second factor of a user who has lost it, with the recovery codes."

    def subcommands(self, add: AddSubcommand) -> None:
        removed = add("remove", self.remove, help="Remove it: logins of the user then require the password only.")
        removed.add_argument("user", metavar="USER", help="username")

    def remove(self, options: dict[str, Any]) -> None:
        from agentops.accounts.login.second_factor import remove_factors

        user = find_user_by_name(options["user"])
        has_factor = remove_factors(user, actor=operator())
        self.stdout.write(
            f"{user.get_username()} {'has no second factor now' if has_factor else 'had no second factor'}"
        )
