"""`agentops agent resume --all`: every paused run goes on, and what was left alone is said with its reason."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from django.core.management.base import CommandError

from agentops.projects.access import SYSTEM, Action, project_for
from agentops.projects.management.base import EXIT_REFUSED, EXIT_USAGE
from runs.actions import run_actions
from runs.actions.run_actions import BulkOutcome
from runs.management.agent.references import operator
from runs.models import AgentRun
from runs.statuses import LIVE


def check_usage(options: dict[str, Any]) -> None:
    """Either a run or all of them; and what is said for one of the two only."""
    problem = ""
    if options["all"] == (options["run"] is not None):
        problem = "name a run, or say --all" if not options["all"] else "name a run, or say --all: not both"
    elif options["replace"] and options["message"] is None:
        problem = "--replace begins anew with a message: give one with --message"
    elif options["project"] is not None and not options["all"]:
        problem = "--project belongs to --all"
    if problem:
        raise CommandError(problem, returncode=EXIT_USAGE)


def resume_all(options: dict[str, Any], **wanted: Any) -> list[BulkOutcome]:
    runs = AgentRun.objects.unended().select_related("project")
    if options["project"] is not None:
        runs = runs.filter(project=project_for(SYSTEM, options["project"], Action.KILL))
    chosen = list(runs.order_by("pk"))
    if wanted["kill"] and not options["dry_run"] and not options["yes"]:
        _confirm(sum(run.state in LIVE for run in chosen))
    return run_actions.resume_many(operator(), chosen, dry_run=options["dry_run"], **wanted)


def lines_of(outcomes: Iterable[BulkOutcome]) -> list[tuple[object, ...]]:
    """A line for each: what became of it, its id, and the run that goes on or the reason why none does."""
    return [
        ("skipped", each.run_id, f"{each.code}: {each.reason}")
        if each.code
        else ("resumed", each.run_id, each.resumed_as or "-")
        for each in outcomes
    ]


def as_json(outcomes: Iterable[BulkOutcome]) -> dict[str, list[dict[str, Any]]]:
    told: dict[str, list[dict[str, Any]]] = {"resumed": [], "skipped": []}
    for each in outcomes:
        if each.code:
            told["skipped"].append({"id": each.run_id, "code": each.code, "reason": each.reason})
        else:
            told["resumed"].append({"id": each.run_id, "resumed_as": each.resumed_as})
    return told


def _confirm(live: int) -> None:
    """Ask whoever sits there; nobody can be asked where there is no terminal."""
    if not live:
        return
    question = f"{live} live runs would be taken away from their workers"
    if not sys.stdin.isatty():
        raise CommandError(f"{question}: pass --yes to confirm", returncode=EXIT_REFUSED)
    if input(f"{question}. Continue? [y/N] ").strip().lower() not in ("y", "yes"):
        raise CommandError("cancelled: nothing was changed", returncode=EXIT_REFUSED)
