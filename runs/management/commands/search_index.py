"""`agentops search_index`: show the progress of the search index, and rebuild it; see runs.upkeep.search_index."""

from __future__ import annotations

from typing import Any

from django.core.management import CommandError
from django.db import ProgrammingError

from agentops.accounts.command_base import AddSubcommand, AgentopsCommand
from runs.management.agent.arguments import add_json
from runs.management.agent.references import find_run
from runs.management.output import write_result
from runs.queries.searching import text_index
from runs.upkeep import search_index


class Command(AgentopsCommand):
    help = "Show the state of the search index, or rebuild it. Workers keep it up to date by themselves."

    def subcommands(self, add: AddSubcommand) -> None:
        status = add("status", self.status, help="Show how far the index is behind the events.")
        run = add("run", self.run, help="Rebuild the entries of runs, for example to mask a secret that was added.")
        run.add_argument("runs", metavar="RUN", nargs="+", help="IDs or short IDs")
        everything = add(
            "all", self.everything, help="Delete all entries. Workers then index everything again, oldest first."
        )
        trigrams = add(
            "trigrams", self.trigrams, help="PostgreSQL: use the extension pg_trgm, which was missing at the migration."
        )
        for parser in (status, run, everything, trigrams):
            add_json(parser)

    def status(self, options: dict[str, Any]) -> None:
        lag_s, entries = search_index.lag_s(), search_index.entry_count()
        behind = f"{lag_s} s behind" if lag_s else "up to date"
        is_extending = search_index.is_extending()
        text = f"{entries} entries, {behind}" + ("; older texts are being indexed again" if is_extending else "")
        write_result(self, text, options, {"entries": entries, "lag_s": lag_s, "indexing_again": is_extending})

    def run(self, options: dict[str, Any]) -> None:
        for run in [find_run(reference) for reference in options["runs"]]:
            entries = search_index.rebuild(run.pk)
            write_result(self, f"{run.pk}: {entries} entries", options, {"id": run.pk, "entries": entries})

    def everything(self, options: dict[str, Any]) -> None:
        deleted = sum(search_index.start_over())
        write_result(self, f"{deleted} entries deleted; workers index everything again", options, {"deleted": deleted})

    def trigrams(self, options: dict[str, Any]) -> None:
        present = text_index.has_trigrams()
        if present is None:
            raise CommandError("only PostgreSQL needs this")
        try:
            if not present:
                text_index.add_trigrams()
        except ProgrammingError as error:
            raise CommandError(
                "pg_trgm is missing: as a superuser of this database, CREATE EXTENSION pg_trgm"
            ) from error
        write_result(self, "The index has trigrams.", options, {"trigrams": True})
