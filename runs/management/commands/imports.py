"""`agentops imports`: the uploaded files of a project and their imports."""

from __future__ import annotations

from typing import Any

from agentops.accounts.access import SYSTEM, Action
from agentops.accounts.command_base import AddSubcommand, AgentopsCommand, operator
from agentops.accounts.current_project import add_project, chosen_project
from runs.access import imports_in
from runs.external import uploads
from runs.external.import_states import set_progress
from runs.management.agent.arguments import add_json
from runs.management.agent.references import find_row
from runs.management.output import write_result, write_rows
from runs.models import FileImport
from timeline.display import clean

#: The number of newest imports to list.
MAX_IMPORTS = 50


class Command(AgentopsCommand):
    help = "List the uploaded files of a project, and cancel their imports. `agentops import` imports files at once."

    def subcommands(self, add: AddSubcommand) -> None:
        ls = add("ls", self.ls, help=f"List the newest {MAX_IMPORTS} imports of a project")
        cancel = add("cancel", self.cancel, help="Cancel an import that is waiting or running; nothing of it is stored")
        add_project(ls, cancel, takes_word=True)
        cancel.add_argument("import_id", metavar="IMPORT", help="ID or short ID of the import")
        for parser in (ls, cancel):
            add_json(parser)

    def ls(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.VIEW_IMPORTS)
        imports = list(imports_in(project, SYSTEM).defer("run_ids")[:MAX_IMPORTS])
        set_progress(imports)
        columns = ("id", "state", "file", "events_done", "events", "new_runs", "error")
        write_rows(self, [_row(one) for one in imports], options, columns, optional=("new_runs", "error", "events"))

    def cancel(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.IMPORT)
        cancelled = uploads.cancel(operator(), find_row(imports_in(project, SYSTEM), options["import_id"], "import"))
        write_result(self, f"cancelled {clean(cancelled.file_name)}", options, _row(cancelled))


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
