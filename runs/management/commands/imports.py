"""`agentops imports`: the uploaded files of a project and their imports."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import EXIT_INVALID, AddSubcommand, AgentopsCommand, operator
from runs.access import import_in, imports_in
from runs.external.uploads import cancelling
from runs.external.uploads.import_progress import set_progress
from runs.models import FileImport
from timeline.display import clean

LISTED = 50


class Command(AgentopsCommand):
    help = "List the uploaded files of a project, and cancel their imports. `agentops import` imports files at once."

    def subcommands(self, add: AddSubcommand) -> None:
        ls = add("ls", self.ls, help=f"List the newest {LISTED} imports of a project")
        cancel = add("cancel", self.cancel, help="Cancel an import that is waiting or running; nothing of it is stored")
        for parser in (ls, cancel):
            parser.add_argument("project", metavar="PROJECT", help="slug or ID")
        cancel.add_argument("import_id", metavar="IMPORT", help="ID of the import")
        for parser in (ls, cancel):
            parser.add_argument("--json", action="store_true", help="print JSON")

    def ls(self, options: dict[str, Any]) -> None:
        project = project_for(SYSTEM, options["project"], Action.VIEW_IMPORTS)
        imports = list(imports_in(project, SYSTEM).defer("run_ids")[:LISTED])
        set_progress(imports)
        rows = [_row(one) for one in imports]
        if options["json"]:
            return self.write_json(rows)
        headers = ["id", "state", "file", "events_done", "events", "new_runs", "error"]
        return self.write_table(headers, [[_shown(row[header]) for header in headers] for row in rows])

    def cancel(self, options: dict[str, Any]) -> None:
        project = project_for(SYSTEM, options["project"], Action.IMPORT)
        cancelled = cancelling.cancel(operator(), import_in(project, SYSTEM, _id(options["import_id"])))
        if options["json"]:
            self.write_json(_row(cancelled))
        else:
            self.stdout.write(f"cancelled {clean(cancelled.file_name)}")


def _row(one: FileImport) -> dict[str, Any]:
    return {
        "id": one.pk,
        "state": one.state,
        "file": clean(one.file_name),
        "events_done": one.events_done,
        "events": one.events,
        "new_runs": one.new_runs,
        "left_out": (one.left_out or {}).get("count", 0),
        "error_code": one.error_code,
        "error": clean(one.error),
    }


def _shown(value: Any) -> Any:
    return "" if value is None else value


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(f"{text[:64]!r} is not a valid import ID", returncode=EXIT_INVALID) from None
