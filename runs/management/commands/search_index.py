"""`agentops search_index`: show the progress of the search index, and rebuild it; see runs.upkeep.search_index."""

from __future__ import annotations

from typing import Any

from django.core.management import CommandError
from django.db import ProgrammingError

from agentops.accounts.management.base import AddSubcommand, AgentopsCommand
from runs.management.agent.references import find_run
from runs.queries.searching import text_index
from runs.upkeep import search_index


class Command(AgentopsCommand):
    help = "Show the state of the search index, or rebuild it. Workers keep it up to date by themselves."

    def subcommands(self, add: AddSubcommand) -> None:
        status = add("status", self.status, help="Show how far the index is behind the events.")
        run = add("run", self.run, help="Rebuild the entries of runs, for example to mask a secret that was added.")
        run.add_argument("runs", metavar="RUN", nargs="+", help="IDs or prefixes")
        everything = add(
            "all", self.everything, help="Delete all entries. Workers then index everything again, oldest first."
        )
        trigrams = add(
            "trigrams", self.trigrams, help="PostgreSQL: use the extension pg_trgm, which was missing at the migration."
        )
        for parser in (status, run, everything, trigrams):
            parser.add_argument("--json", action="store_true", help="print JSON")

    def status(self, options: dict[str, Any]) -> None:
        lag_s, entries = search_index.lag_s(), search_index.entry_count()
        behind = f"{lag_s} s behind" if lag_s else "up to date"
        again = search_index.is_extending()
        also = "; older texts are being indexed again" if again else ""
        self._tell(f"{entries} entries, {behind}{also}", options, entries=entries, lag_s=lag_s, indexing_again=again)

    def run(self, options: dict[str, Any]) -> None:
        for run in [find_run(reference) for reference in options["runs"]]:
            entries = search_index.rebuild(run.pk)
            self._tell(f"{run.pk}: {entries} entries", options, id=run.pk, entries=entries)

    def everything(self, options: dict[str, Any]) -> None:
        deleted = sum(search_index.start_over())
        self._tell(f"{deleted} entries deleted; workers index everything again", options, deleted=deleted)

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
        self._tell("The index has trigrams.", options, trigrams=True)

    def _tell(self, text: str, options: dict[str, Any], **facts: Any) -> None:
        if options["json"]:
            self.write_json(facts)
        else:
            self.stdout.write(text)
