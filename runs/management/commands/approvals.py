"""`agentops approvals`: entries that wait for a person, and the approval rules of a project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from agentops.accounts.access import SYSTEM, Action, projects_for
from agentops.accounts.command_base import EXIT_INVALID, AgentopsCommand, operator
from agentops.accounts.current_project import add_project_filter, chosen_project, project_filter
from agentops.accounts.models import Project
from runs.actions import approvals
from runs.management.agent.arguments import STDIN, read_definition
from runs.management.agent.run_table import redacted, shorten
from runs.management.output import write_rows
from runs.queries.json_columns import to_json
from runs.queries.json_lists import RowSpan
from runs.queries.waiting_for_people import ItemKind, WaitingItem, waiting_items

#: Items loaded per query.
PAGE_ROWS = 200


class Command(AgentopsCommand):
    help = (
        "List what waits for a person, the oldest first: tool calls that wait for approval (`run approve` and "
        "`run deny` decide), questions of agents (`run send` answers) and tool calls with an unknown outcome "
        "(`run outcome` resolves it). Show or replace the approval rules of the project, which hold for all its "
        "agents"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_project_filter(parser, takes_word=True)
        parser.add_argument(
            "--kind", action="append", choices=[kind.value for kind in ItemKind], help="kind; may be repeated"
        )
        rules = parser.add_mutually_exclusive_group()
        rules.add_argument("--rules", action="store_true", help="print the rules of the project as JSON")
        rules.add_argument(
            "--set-rules",
            metavar="FILE",
            help=f"replace the rules by those under `approvals` of a TOML or JSON file; {STDIN} reads standard input",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["set_rules"] is not None:
            self._set_rules(chosen_project(options, Action.MANAGE), options["set_rules"])
        elif options["rules"]:
            self.write_json(approvals.rules_of(chosen_project(options, Action.MANAGE)))
        else:
            project = project_filter(options, Action.MANAGE)
            self._list(projects_for(SYSTEM) if project is None else [project.pk], options)

    def _set_rules(self, project: Project, name: str) -> None:
        document = read_definition(name)
        if set(document) != {"approvals"}:
            raise CommandError(f"{name}: expected the key approvals alone", returncode=EXIT_INVALID)
        approvals.set_rules(operator(), project, document["approvals"])
        self.stdout.write(f"{project.slug}: {len(document['approvals'])} rules")

    def _list(self, projects: Sequence[UUID] | QuerySet[Project], options: dict[str, Any]) -> None:
        kinds = [ItemKind(kind) for kind in options["kind"] or ItemKind]
        rows = list(map(_row, _items(projects, kinds)))
        write_rows(self, rows, options, optional=("expires_at", "project", "reason", "kind", "created_at"))


def _items(projects: Sequence[UUID] | QuerySet[Project], kinds: Sequence[ItemKind]) -> Iterator[WaitingItem]:
    """Yield all waiting entries, page by page, oldest first."""
    span = RowSpan(backward=True, limit=PAGE_ROWS)
    while items := waiting_items(projects, span, kinds=kinds):
        yield from items
        span = replace(span, position=(items[-1].id.hex,))


def _row(item: WaitingItem) -> dict[str, Any]:
    approval = item.approval
    return {
        "kind": item.kind.value,
        "project": item.run.project.slug,
        "run_id": item.run.pk,
        "tool_name": redacted(item.call.tool_name),
        "arguments": shorten(redacted(to_json(item.call.input if approval is None else approval.arguments))),
        "reason": redacted(approval.reason) if approval is not None else "",
        "created_at": item.since,
        "expires_at": item.expires_at,
        "call_id": item.call.pk,
    }
