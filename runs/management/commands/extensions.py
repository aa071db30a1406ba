"""`agentops extensions`: the parts that packages and modules of the deployment add to this installation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management import CommandError
from django.core.management.base import CommandParser

from agentops.accounts.command_base import EXIT_NOT_COMPLETED, AgentopsCommand
from agentops.base.catalogue import BUILT_IN, Catalogue, ExtensionFailed
from runs.external.importers.formats import IMPORTERS
from runs.hooks.hook_catalogue import HOOKS
from runs.providers.base import PROVIDERS
from runs.telemetry.sink_targets import KINDS
from runs.tools.catalogue import TOOLS
from runs.worker.packaged.catalogue import AGENTS

CATALOGUES: tuple[Catalogue[Any], ...] = (TOOLS, PROVIDERS, HOOKS, IMPORTERS, KINDS, AGENTS)


class Command(AgentopsCommand):
    help = (
        "List the tools, providers, hooks, importers, kinds of sinks and agents that packages and modules add, with the"
        " place that each comes from. The exit code is 1 if an extension cannot be used."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--all", action="store_true", help="list what is built in too")
        parser.add_argument("--json", action="store_true", help="print JSON, with the faults")

    def handle(self, *args: Any, **options: Any) -> None:
        parts = [part for part in _parts() if options["all"] or part["source"] != BUILT_IN]
        faults = [fault for catalogue in CATALOGUES for fault in catalogue.faults()]
        if options["json"]:
            fault_rows = [{"source": fault.source, "reason": fault.reason} for fault in faults]
            self.write_json({"extensions": parts, "faults": fault_rows})
        else:
            self.write_table(["kind", "name", "from", "description"], [tuple(part.values()) for part in parts])
        refuse_faults(faults)


def refuse_faults(faults: Sequence[ExtensionFailed]) -> None:
    """Raise `CommandError` if there are extensions that cannot be used."""
    if faults:
        lines = "\n".join(f"  {fault}" for fault in faults)
        raise CommandError(f"extensions that cannot be used:\n{lines}", returncode=EXIT_NOT_COMPLETED)


def _parts() -> Iterator[dict[str, str]]:
    """Yield all tools, providers, hooks, importers, kinds of sinks and agents, with their sources."""
    for catalogue in CATALOGUES:
        for entry in catalogue.entries():
            description = catalogue.describe(entry).partition("\n")[0]
            yield {"kind": catalogue.kind, "name": entry.name, "source": entry.source, "description": description}
