"""`agentops extensions`: the parts that packages and modules of the deployment add to this installation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.core.management import CommandError
from django.core.management.base import CommandParser

from agentops.accounts.management.base import EXIT_NOT_COMPLETED, AgentopsCommand
from agentops.base.catalogue import BUILT_IN, Catalogue
from runs.external.importers.formats import IMPORTERS
from runs.hooks.hook_catalogue import HOOKS
from runs.providers.base import PROVIDERS
from runs.telemetry.kind_catalogue import KINDS
from runs.tools.catalogue import TOOLS

CATALOGUES: tuple[Catalogue[Any], ...] = (TOOLS, PROVIDERS, HOOKS, IMPORTERS, KINDS)
HEADERS = ["kind", "name", "from", "description"]


@dataclass(frozen=True)
class _Part:
    """A part that can be named in a definition, by `agentops import`, or as the kind of a sink."""

    kind: str
    name: str
    source: str
    description: str


class Command(AgentopsCommand):
    help = (
        "List the tools, providers, hooks, importers and kinds of sinks that packages and modules add, with the place"
        " that each comes from. Ends with 1 if an extension cannot be used."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--all", action="store_true", help="list what is built in too")
        parser.add_argument("--json", action="store_true", help="print JSON, with the faults")

    def handle(self, *args: Any, **options: Any) -> None:
        parts = [part for part in _parts() if options["all"] or part.source != BUILT_IN]
        faults = [fault for catalogue in CATALOGUES for fault in catalogue.faults()]
        if options["json"]:
            failed = [{"source": fault.source, "reason": fault.reason} for fault in faults]
            self.write_json({"extensions": [vars(part) for part in parts], "faults": failed})
        else:
            self.write_table(HEADERS, [(part.kind, part.name, part.source, part.description) for part in parts])
        if faults:
            left_out = "\n".join(f"  {fault}" for fault in faults)
            raise CommandError(f"extensions that cannot be used:\n{left_out}", returncode=EXIT_NOT_COMPLETED)


def _parts() -> Iterator[_Part]:
    for catalogue in CATALOGUES:
        for entry in catalogue.entries():
            yield _Part(catalogue.kind, entry.name, entry.source, catalogue.describe(entry).partition("\n")[0])
