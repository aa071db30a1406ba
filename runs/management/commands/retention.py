"""`agentops retention`: remove the runs that were kept for long enough, and hold those that must stay.

A door: what goes and how is said in runs.upkeep.retention.
"""

from __future__ import annotations

import argparse
import re
from contextlib import closing
from typing import Any

from django.core.management.base import CommandParser

from agentops.projects.access import SYSTEM, Action, project_for
from agentops.projects.management.base import OurCommand
from agentops.projects.models import Project
from runs.management.agent.input_files import legible
from runs.management.agent.references import find_run, operator
from runs.upkeep import retention
from runs.upkeep.retention import RemovalReport
from runs.upkeep.run_groups import KeptReason

MAX_REASON = 200


class Command(OurCommand):
    help = (
        "Delete runs whose retention has ended. Run groups (resumed, forked and spawned"
        " runs) are deleted together, when the last run is old enough."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.set_defaults(handler=self.apply)
        parser.add_argument("--dry-run", action="store_true", help="dry run: list the runs that would be deleted")
        parser.add_argument("--project", metavar="SLUG", help="slug or ID (default: all projects)")
        parser.add_argument(
            "--older-than", metavar="DAYS", type=_days, help="days since the end (default: the project's retention)"
        )
        parser.add_argument("--json", action="store_true", help="as JSON")
        choices = parser.add_subparsers(metavar="[hold|release]")
        for name, handler, told in (
            ("hold", self.hold, "Exempt a run from retention until it is released."),
            ("release", self.release, "Release a held run."),
        ):
            chosen = choices.add_parser(name, help=told, description=told)
            chosen.set_defaults(handler=handler)
            chosen.add_argument("run", metavar="RUN", help="run ID or a unique prefix")
            chosen.add_argument("--reason", metavar="TEXT", type=_reason, required=True, help="for the audit log")
            chosen.add_argument("--json", action="store_true", help="as JSON")

    def apply(self, options: dict[str, Any]) -> None:
        projects = _projects(options["project"])
        outcomes = []
        for project in projects:
            days = options["older_than"] if options["older_than"] is not None else project.retention_days
            if options["dry_run"]:
                outcomes.append(retention.preview(project, days))
            else:
                outcomes.append(self._remove(project, days))
        if not options["dry_run"]:
            retention.delete_expired()
        rows = [_row(outcome) for outcome in outcomes]
        if options["json"]:
            self.write_json(rows)
        else:
            self.write_table(list(_cells(rows[0])) if rows else [], [list(_cells(row).values()) for row in rows])

    def hold(self, options: dict[str, Any]) -> None:
        run = retention.hold(find_run(options["run"]).pk, reason=options["reason"], by=operator())
        self._tell(run.pk, f"{run.pk} is kept until it is released", options, held_at=run.held_at)

    def release(self, options: dict[str, Any]) -> None:
        run = retention.release(find_run(options["run"]).pk, reason=options["reason"], by=operator())
        self._tell(run.pk, f"{run.pk} is held no longer", options, held_at=None)

    def _remove(self, project: Project, days: int | None) -> RemovalReport:
        done = RemovalReport(project, days)
        with closing(retention.apply(done, by=operator())) as removal:
            for _ in removal:
                self._show(done)
        if self.stderr.isatty() and done.rows:
            self.stderr.write("")
        return done

    def _show(self, done: RemovalReport) -> None:
        """Where somebody looks on: how far it is, in one line that is written again and again."""
        if self.stderr.isatty():
            self.stderr.write(f"\r{done.project.slug}: {done.runs} runs, {done.rows.total()} rows removed", ending="")
            self.stderr.flush()

    def _tell(self, run_id: Any, text: str, options: dict[str, Any], **facts: Any) -> None:
        if options["json"]:
            self.write_json({"id": run_id, **facts})
        else:
            self.stdout.write(text)


def _projects(reference: str | None) -> list[Project]:
    if reference is not None:
        return [project_for(SYSTEM, reference, Action.MANAGE)]
    return list(Project.objects.order_by("slug"))


def _row(outcome: RemovalReport) -> dict[str, Any]:
    return {
        "project": outcome.project.slug,
        "older_than_days": outcome.days,
        "runs": outcome.runs,
        "rows": dict(outcome.rows),
        "kept": {why.value: outcome.kept[why] for why in KeptReason},
    }


def _cells(row: dict[str, Any]) -> dict[str, object]:
    days = row["older_than_days"]
    return {
        "project": row["project"],
        "older than": "kept for ever" if days is None else f"{days} d",
        "runs": row["runs"],
        "rows": sum(row["rows"].values()),
        "families held": row["kept"]["held"],
        "families needed": row["kept"]["needed"],
    }


def _days(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is no number of days")
    return int(text)


def _reason(text: str) -> str:
    reason = legible(text).strip()
    if not reason or len(reason) > MAX_REASON:
        raise argparse.ArgumentTypeError(f"a reason has 1 to {MAX_REASON} characters")
    return reason
