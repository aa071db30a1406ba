"""`agentops approvals`: the tool calls that wait for a person, and the rules of a project that let them wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from agentops.projects.access import SYSTEM, Action, project_for, projects_for
from agentops.projects.management.base import EXIT_INVALID, EXIT_USAGE, AgentopsCommand
from agentops.projects.models import Project
from runs.actions import approvals
from runs.management.agent.input_files import STDIN, read_definition
from runs.management.agent.references import operator
from runs.management.agent.run_table import redacted, shorten
from runs.models import Approval
from runs.queries.json_columns import to_json


class Command(AgentopsCommand):
    help = (
        "List the tool calls that wait for approval; decide them with `agent approve` and `agent deny`. "
        "Show or replace the approval rules of the project, which hold for all its agents"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("project", metavar="PROJECT", nargs="?", help="slug or ID (default: all projects)")
        rules = parser.add_mutually_exclusive_group()
        rules.add_argument("--rules", action="store_true", help="print the rules of the project as JSON")
        rules.add_argument(
            "--set-rules", metavar="FILE",
            help=f"replace the rules by those under `approvals` of a TOML or JSON file; {STDIN} reads standard input",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["project"] is None:
            self._list_all(options)
            return
        project = project_for(SYSTEM, options["project"], Action.MANAGE)
        if options["set_rules"] is not None:
            self._set_rules(project, options["set_rules"])
        elif options["rules"]:
            self.write_json(approvals.rules_of(project))
        else:
            self._list([project.pk], options)

    def _list_all(self, options: dict[str, Any]) -> None:
        if options["rules"] or options["set_rules"] is not None:
            raise CommandError("rules belong to a project: name one", returncode=EXIT_USAGE)
        self._list(projects_for(SYSTEM), options)

    def _set_rules(self, project: Project, name: str) -> None:
        document = read_definition(name)
        if set(document) != {"approvals"}:
            raise CommandError(f"{name}: expected the key approvals alone", returncode=EXIT_INVALID)
        approvals.set_rules(operator(), project, document["approvals"])
        self.stdout.write(f"{project.slug}: {len(document['approvals'])} rules")

    def _list(self, projects: Sequence[UUID] | QuerySet[Project], options: dict[str, Any]) -> None:
        rows = list(map(_row, approvals.pending(projects)))
        if options["json"]:
            self.write_json(rows)
        elif rows:
            self.write_table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows])


def _row(approval: Approval) -> dict[str, Any]:
    return {
        "project": approval.project.slug,
        "run_id": str(approval.run_id),
        "tool_name": redacted(approval.tool_name),
        "arguments": shorten(redacted(to_json(approval.arguments))),
        "reason": redacted(approval.reason),
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
        "call_id": str(approval.call_id),
    }
