"""`agentops retention`: remove expired runs, and exempt runs from removal; see runs.upkeep.retention."""

from __future__ import annotations

import argparse
import re
from contextlib import closing
from typing import Any

from django.core.management.base import CommandParser

from agentops.accounts.access import Action
from agentops.accounts.command_base import AgentopsCommand, operator, subcommand_adder
from agentops.accounts.current_project import named_project
from agentops.accounts.models import Project
from runs.management.agent.arguments import clean_argument
from runs.management.agent.references import find_run
from runs.management.output import show_progress, write_result
from runs.upkeep import retention
from runs.upkeep.retention import RemovalReport
from runs.upkeep.run_groups import RetentionReason

MAX_REASON = 200


class Command(AgentopsCommand):
    help = (
        "Delete runs whose retention has ended. Run groups (resumed, forked and spawned"
        " runs) are deleted together, when the last run is old enough."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.set_defaults(handler=self.apply)
        parser.add_argument("--dry-run", action="store_true", help="count what would be deleted, and delete nothing")
        parser.add_argument("--project", metavar="SLUG", help="slug or ID (default: all projects)")
        parser.add_argument(
            "--older-than", metavar="DAYS", type=_days, help="days since the end (default: the project's retention)"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")
        add = subcommand_adder(parser, "[hold|release]", required=False)
        for name, handler, help_text in (
            ("hold", self.hold, "Exempt a run from retention until it is released."),
            ("release", self.release, "Release a held run."),
        ):
            chosen = add(name, handler, help=help_text)
            chosen.add_argument("run", metavar="RUN", help="run ID or short ID")
            chosen.add_argument(
                "--reason", metavar="TEXT", type=_reason, required=True, help="reason for the audit log"
            )
            chosen.add_argument("--json", action="store_true", help="print JSON")

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
        write_result(self, f"{run.pk} is kept until it is released", options, {"id": run.pk, "held_at": run.held_at})

    def release(self, options: dict[str, Any]) -> None:
        run = retention.release(find_run(options["run"]).pk, reason=options["reason"], by=operator())
        write_result(self, f"{run.pk} is released", options, {"id": run.pk, "held_at": None})

    def _remove(self, project: Project, days: int | None) -> RemovalReport:
        report = RemovalReport(project, days)
        with closing(retention.apply(report, by=operator())) as removal:
            for _ in removal:
                show_progress(self, f"{project.slug}: {report.runs} runs, {report.rows.total()} rows deleted")
        if self.stderr.isatty() and report.rows:
            self.stderr.write("")
        return report


def _projects(reference: str | None) -> list[Project]:
    if reference is not None:
        return [named_project(reference, Action.MANAGE)]
    return list(Project.objects.order_by("slug"))


def _row(outcome: RemovalReport) -> dict[str, Any]:
    return {
        "project": outcome.project.slug,
        "older_than_days": outcome.days,
        "runs": outcome.runs,
        "rows": dict(outcome.rows),
        "kept": {why.value: outcome.kept_groups[why] for why in RetentionReason},
    }


def _cells(row: dict[str, Any]) -> dict[str, object]:
    days = row["older_than_days"]
    return {
        "project": row["project"],
        "older than": "unlimited" if days is None else f"{days} d",
        "runs": row["runs"],
        "rows": sum(row["rows"].values()),
        "groups held": row["kept"]["held"],
        "groups needed": row["kept"]["needed"],
    }


def _days(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a number of days")
    return int(text)


def _reason(text: str) -> str:
    reason = clean_argument(text).strip()
    if not reason or len(reason) > MAX_REASON:
        raise argparse.ArgumentTypeError(f"a reason must have 1 to {MAX_REASON} characters")
    return reason
