"""`agentops agent resume --all`: resume every paused run, and list the skipped ones with the reason."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import EXIT_REFUSED, EXIT_USAGE, ask, operator
from runs.actions import run_actions
from runs.actions.run_actions import BulkOutcome
from runs.models import AgentRun
from runs.statuses import LIVE


def check_usage(options: dict[str, Any]) -> None:
    """Raise `CommandError` unless either RUN or --all is used, with matching options."""
    problem = ""
    if options["all"] == (options["run"] is not None):
        problem = "pass a run or --all" if not options["all"] else "pass either a run or --all, not both"
    elif options["replace"] and options["message"] is None:
        problem = "--replace requires --message"
    elif options["project"] is not None and not options["all"]:
        problem = "--project requires --all"
    if problem:
        raise CommandError(problem, returncode=EXIT_USAGE)


def resume_all(options: dict[str, Any], **filters: Any) -> list[BulkOutcome]:
    runs = AgentRun.objects.unended().select_related("project")
    if options["project"] is not None:
        runs = runs.filter(project=project_for(SYSTEM, options["project"], Action.KILL))
    chosen = list(runs.order_by("pk"))
    if filters["kill"] and not options["dry_run"] and not options["yes"]:
        _confirm(sum(run.state in LIVE for run in chosen))
    return run_actions.resume_many(operator(), chosen, dry_run=options["dry_run"], **filters)


def lines_of(outcomes: Iterable[BulkOutcome]) -> list[tuple[object, ...]]:
    """Return a row for each outcome: the result, the run ID, and the new run or the reason."""
    return [
        ("skipped", each.run_id, f"{each.code}: {each.reason}")
        if each.code
        else ("resumed", each.run_id, each.resumed_as or "-")
        for each in outcomes
    ]


def as_json(outcomes: Iterable[BulkOutcome]) -> dict[str, list[dict[str, Any]]]:
    lists: dict[str, list[dict[str, Any]]] = {"resumed": [], "skipped": []}
    for each in outcomes:
        if each.code:
            lists["skipped"].append({"id": each.run_id, "code": each.code, "reason": each.reason})
        else:
            lists["resumed"].append({"id": each.run_id, "resumed_as": each.resumed_as})
    return lists


def _confirm(live: int) -> None:
    """Ask for confirmation on a terminal. Raises `CommandError` without one."""
    if not live:
        return
    question = f"this stops the workers of {live} active runs"
    if not sys.stdin.isatty():
        raise CommandError(f"{question}: pass --yes to confirm", returncode=EXIT_REFUSED)
    if ask(f"{question}. Continue? [y/N] ").lower() not in ("y", "yes"):
        raise CommandError("cancelled: nothing was changed", returncode=EXIT_REFUSED)
