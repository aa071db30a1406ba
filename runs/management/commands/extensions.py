"""`agentops extensions`: the parts that packages and modules of the deployment add to this installation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import getdoc
from typing import Any

from django.core.management import CommandError
from django.core.management.base import CommandParser

from agentops.accounts.management.base import EXIT_NOT_COMPLETED, AgentopsCommand
from runs.extensions import BUILT_IN, ExtensionFailed
from runs.external.importers import formats
from runs.hooks import hook_catalogue
from runs.providers import base as providers
from runs.telemetry import kind_catalogue
from runs.tools.catalogue import TOOLS

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
        faults = _faults()
        if options["json"]:
            failed = [{"source": fault.source, "reason": fault.reason} for fault in faults]
            self.write_json({"extensions": [vars(part) for part in parts], "faults": failed})
        else:
            self.write_table(HEADERS, [(part.kind, part.name, part.source, part.description) for part in parts])
        if faults:
            left_out = "\n".join(f"  {fault}" for fault in faults)
            raise CommandError(f"extensions that cannot be used:\n{left_out}", returncode=EXIT_NOT_COMPLETED)


def _parts() -> Iterator[_Part]:
    for tool in TOOLS.registered():
        yield _Part("tool", tool.tool.name, tool.source, _first_line(tool.tool.description))
    for name in sorted(providers.MODULES):
        yield _Part("provider", name, BUILT_IN, "")
    for name, provider in sorted(providers.added().items()):
        yield _Part("provider", name, provider.source, _first_line(getdoc(type(provider.provider))))
    for hook in hook_catalogue.registered():
        yield _Part("hook", hook.hook.name, hook.source, _first_line(getdoc(hook.hook)))
    replaced = {each.importer.name: each.source for each in formats.added()}
    for importer in formats.importers():
        yield _Part("importer", importer.name, replaced.get(importer.name, BUILT_IN), importer.title)
    for name in kind_catalogue.names():
        source = BUILT_IN if name in kind_catalogue.BUILTIN else kind_catalogue.added()[name].source
        yield _Part("sink", name, source, kind_catalogue.kind_of(name).title)


def _faults() -> list[ExtensionFailed]:
    return [
        *TOOLS.faults(), *providers.faults(), *hook_catalogue.faults(), *formats.faults(), *kind_catalogue.faults(),
    ]  # fmt: skip


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]
