"""`agentops member`: list, add, invite and remove the members of a project, and change their roles."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from agentops.accounts import invitations, memberships
from agentops.accounts.access import Action
from agentops.accounts.command_base import AddSubcommand, AgentopsCommand, operator
from agentops.accounts.current_project import add_project, chosen_project
from agentops.accounts.login.addresses import is_verified
from agentops.accounts.models import Membership, Project, Role


class Command(AgentopsCommand):
    help = "List, add, invite and remove the members of a project, and change their roles."

    def subcommands(self, add: AddSubcommand) -> None:
        ls = add("ls", self.ls, help="List the members of a project by name.")
        added = add("add", self.add, help="Add a user to a project.")
        changed = add("role", self.change_role, help="Change the role of a member.")
        removed = add("remove", self.remove, help="Remove a member from a project.")
        invited = add("invite", self.invite, help="Invite an e-mail address to a project, and print the link.")
        invited.add_argument("email", metavar="ADDRESS", help="e-mail address")
        for parser in (added, changed, removed):
            parser.add_argument("user", metavar="USER", help="username")
        add_project(ls, added, changed, removed, invited)
        for parser in (added, changed, invited):
            parser.add_argument("--role", metavar="ROLE", required=True, help=f"of {', '.join(Role.values)}")
        ls.add_argument("--json", action="store_true", help="print JSON")

    def ls(self, options: dict[str, Any]) -> None:
        members = Membership.objects.filter(project=_project(options)).select_related("user__email_address")
        rows = [_row(member) for member in members.order_by("user__username")]
        if options["json"]:
            self.write_json(rows)
        else:
            verified = ["yes" if row["email_verified"] else "no" if row["email"] else "" for row in rows]
            cells = [(row["user"], row["role"], row["email"], each) for row, each in zip(rows, verified, strict=True)]
            self.write_table(["user", "role", "email", "verified"], cells)

    def add(self, options: dict[str, Any]) -> None:
        project, user = _project(options), memberships.find_user_by_name(options["user"])
        membership = memberships.add_member(project, user, options["role"], actor=operator())
        self.stdout.write(f"{user.get_username()} is {membership.role} of {project.slug}")

    def change_role(self, options: dict[str, Any]) -> None:
        project, user = _project(options), memberships.find_user_by_name(options["user"])
        membership = memberships.change_role(project, user, options["role"], actor=operator())
        self.stdout.write(f"{user.get_username()} is {membership.role} of {project.slug}")

    def remove(self, options: dict[str, Any]) -> None:
        project, user = _project(options), memberships.find_user_by_name(options["user"])
        memberships.remove_member(project, user, actor=operator())
        self.stdout.write(f"{user.get_username()} is no member of {project.slug}")

    def invite(self, options: dict[str, Any]) -> None:
        invitation = invitations.invite(_project(options), options["email"], options["role"], actor=operator())
        sent = "and sent an e-mail" if invitations.send(invitation) else "without an e-mail: pass on the link"
        self.stdout.write(f"invited {invitation.email} {sent}")
        self.stdout.write(f"{settings.AGENTOPS_BASE_URL}{invitations.url_path(invitation)}")


def _project(options: dict[str, Any]) -> Project:
    return chosen_project(options, Action.MANAGE)


def _row(membership: Membership) -> dict[str, Any]:
    user = membership.user
    return {
        "user": user.get_username(),
        "role": membership.role,
        "email": user.email,
        "email_verified": is_verified(user),
        "is_active": user.is_active,
        "created_at": membership.created_at,
    }
