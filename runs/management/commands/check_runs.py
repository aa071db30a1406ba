"""`agentops check_runs`: does the log of each run tell what its rows hold?

A door: may import Django, identity and runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from agentops.projects.access import SYSTEM, Action, project_for
from agentops.projects.management.base import EXIT_NOT_FOUND, OurCommand, printable
from runs.folding import Difference, differences
from runs.models import AgentRun


class Command(OurCommand):
    help = "Check that the events of our runs add up to their rows; ends with 1 where they do not. Reads only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("runs", metavar="RUN", nargs="*", type=UUID, help="runs to check (default: all)")
        parser.add_argument("--project", metavar="SLUG", help="only runs of this project: slug or id")
        parser.add_argument("--json", action="store_true", help="as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        checked, differing = 0, {}
        for run_id in self._wanted(options):
            found = differences(run_id)
            checked += 1
            if found:
                differing[str(run_id)] = found
            if not options["json"]:
                self._tell(run_id, found)
        if options["json"]:
            shown = {run_id: [asdict(difference) for difference in found] for run_id, found in differing.items()}
            self.write_json({"checked": checked, "differing": shown})
        else:
            self.stdout.write(f"{checked} checked, {len(differing)} differ.")
        if differing:
            raise CommandError(f"the events of {len(differing)} runs do not add up to their rows", returncode=1)

    def _wanted(self, options: dict[str, Any]) -> Iterator[UUID]:
        """Native runs only: of another's run the log is all that we have."""
        runs = AgentRun.objects.all()
        if options["project"] is not None:
            runs = runs.filter(project=project_for(SYSTEM, options["project"], Action.READ))
        if not options["runs"]:
            yield from runs.filter(source=AgentRun.Source.NATIVE).order_by("pk").values_list("pk", flat=True)
            return
        sources = dict(runs.filter(pk__in=options["runs"]).values_list("pk", "source"))
        missing = [str(run_id) for run_id in options["runs"] if run_id not in sources]
        if missing:
            raise CommandError(f"no run {', '.join(missing)}", returncode=EXIT_NOT_FOUND)
        for run_id, source in sources.items():
            if source == AgentRun.Source.NATIVE:
                yield run_id
            else:
                self.stderr.write(f"agentops: {run_id} is not ours ({source}): there are no rows of its own to compare")

    def _tell(self, run_id: UUID, found: list[Difference]) -> None:
        if found:
            self.stdout.write(f"{run_id} differs")
        for difference in found:
            told, kept = printable(difference.events), printable(difference.rows)
            self.stdout.write(f"  {printable(difference.what)}: the events say {told}, the rows {kept}")
