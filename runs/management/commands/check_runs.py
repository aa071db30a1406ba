"""`agentops check_runs`: compare the log of each run, and of each flow run, with its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.access import Action
from agentops.accounts.command_base import EXIT_NOT_FOUND, AgentopsCommand, printable
from agentops.accounts.current_project import named_project
from runs.management.agent.references import find_run_or_flow_run
from runs.models import AgentRun, FlowRun
from runs.upkeep.replay_check import Mismatch, differences, flow_differences


class Command(AgentopsCommand):
    help = "Replay the events of runs and flow runs and compare the result with their rows. Exit code 1 if they differ."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("runs", metavar="RUN", nargs="*", help="IDs or short IDs (default: all runs)")
        parser.add_argument("--project", metavar="SLUG", help="only runs of this project: slug or ID")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        checked, mismatches_of = 0, {}
        for run_id in self._run_ids(options):
            is_flow = FlowRun.objects.filter(pk=run_id).exists()
            mismatches = flow_differences(run_id) if is_flow else differences(run_id)
            checked += 1
            if mismatches:
                mismatches_of[str(run_id)] = mismatches
            if not options["json"]:
                self._report(run_id, mismatches)
        if options["json"]:
            differing = {run_id: [asdict(each) for each in found] for run_id, found in mismatches_of.items()}
            self.write_json({"checked": checked, "differing": differing})
        else:
            self.stdout.write(f"{checked} checked, {len(mismatches_of)} differ.")
        if mismatches_of:
            raise CommandError(f"{len(mismatches_of)} runs differ from the replay of their events", returncode=1)

    def _run_ids(self, options: dict[str, Any]) -> Iterator[UUID]:
        """Yield the IDs of the runs and flow runs to check. Raises `CommandError` for a run of another project."""
        project = named_project(options["project"], Action.READ) if options["project"] is not None else None
        if not options["runs"]:
            for rows in (AgentRun.objects.order_by("pk"), FlowRun.objects.order_by("pk")):
                yield from (rows.filter(project=project) if project else rows).values_list("pk", flat=True)
        for run in [find_run_or_flow_run(reference) for reference in options["runs"]]:
            if project is not None and run.project_id != project.pk:
                raise CommandError(f"run {run.pk} is not in project {project.slug}", returncode=EXIT_NOT_FOUND)
            yield run.pk

    def _report(self, run_id: UUID, mismatches: list[Mismatch]) -> None:
        if mismatches:
            self.stdout.write(f"{run_id} differs")
        for difference in mismatches:
            events, rows = printable(difference.events), printable(difference.rows)
            self.stdout.write(f"  {printable(difference.what)}: events: {events}, rows: {rows}")
