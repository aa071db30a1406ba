"""Changes of a project by its admins: its daily budgets, its own prices of models, its archiving and its deletion.

Only this module writes budgets and prices, with an audit entry for each change. Workers read them when they claim a
run, so a change takes effect within a slice. Stored costs do not change. An archived project is read-only, and not in
menus. A deletion is previewed, checked and requested here; workers carry it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import QuerySet, Sum

from agentops.accounts.audit import Actor, AuditAction, record
from agentops.accounts.errors import NotArchivable, NotConfirmed, ProjectNotFound
from agentops.accounts.memberships import archive_project, hide_project
from agentops.accounts.models import ApiKey, Membership, Project
from agentops.base.refusals import Conflict
from runs.agents import budgets
from runs.agents.prices import InvalidPrices, ModelPrice, prices_of
from runs.models import (
    Agent,
    AgentRun,
    AlertRule,
    ClaudeTranscript,
    FileImport,
    Flow,
    FlowRun,
    GraphThread,
    Schedule,
    Sink,
)
from runs.statuses import LIVE
from timeline.models import Log

# --- Budgets and prices ---


def budgets_of(project: Project) -> dict[str, Any]:
    """Return the budgets as stored. Raises `InvalidBudget` if they are unreadable."""
    budgets.day_limits(project.settings)
    return dict(project.settings.get("budgets") or {})


def change_budgets(project: Project, changes: Mapping[str, Any], *, by: Actor) -> dict[str, Any]:
    """Set the budgets in `changes`, or remove the null ones. Returns the budgets after the change.

    Raises `InvalidBudget`, and then writes nothing. Unreadable stored budgets are replaced.
    """
    with transaction.atomic():
        locked = Project.objects.locked(project)
        settings = locked.settings if isinstance(locked.settings, dict) else {}
        before = settings.get("budgets")
        budgets_before = before if isinstance(before, dict) else {}
        after = {name: value for name, value in {**budgets_before, **changes}.items() if value is not None}
        budgets.day_limits({"budgets": after})
        if after != (before or {}):
            _store(locked, "budgets", before, after, by)
    return after


def set_price(project: Project, price: Mapping[str, Any], *, by: Actor) -> list[ModelPrice]:
    """Set a price. It replaces an earlier price of the same model, tier and size. Returns all prices of the project.

    Raises `InvalidPrices`, and then writes nothing.
    """
    [checked] = prices_of({"prices": [dict(price)]})
    return _change(project, checked.key, checked, by)


def remove_price(project: Project, pattern: str, *, tier: str = "", above: int = 0, by: Actor) -> list[ModelPrice]:
    """Remove a price. Returns the remaining prices. Raises `InvalidPrices` if the project does not have it."""
    return _change(project, (pattern, tier, above), None, by)


def _change(project: Project, key: tuple[str, str, int], price: ModelPrice | None, by: Actor) -> list[ModelPrice]:
    """Set the price with this key, or remove it if `price` is None. Returns all prices of the project."""
    with transaction.atomic():
        locked = Project.objects.locked(project)
        settings = locked.settings if isinstance(locked.settings, dict) else {}
        stored = prices_of(settings)
        before = [_document(each) for each in stored]
        others = [each for each in stored if each.key != key]
        if price is None and len(others) == len(stored):
            raise InvalidPrices(f"the project has no price for {_name_of(*key)}")
        prices = sorted(others if price is None else [*others, price], key=lambda each: each.key)
        after = [_document(each) for each in prices]
        prices_of({"prices": after})
        if after != before:
            _store(locked, "prices", before, after, by)
    return prices


def _store(locked: Project, name: str, before: Any, after: Any, by: Actor) -> None:
    """Store a value in the settings of a project, with an audit entry."""
    settings = locked.settings if isinstance(locked.settings, dict) else {}
    locked.settings = {**settings, name: after}
    locked.save(update_fields=["settings"])
    record(by, AuditAction.PROJECT_CHANGED, project=locked, obj=locked, before={name: before}, after={name: after})


def _name_of(pattern: str, tier: str, above: int) -> str:
    """Return the key of a price in words."""
    size = f" above {above:,} input tokens" if above else ""
    return f"{pattern[:200]!r}{f', tier {tier[:40]}' if tier else ''}{size}"


def _document(price: ModelPrice) -> dict[str, Any]:
    """Return a price as JSON, with amounts as text to keep their digits."""
    values = price.model_dump(exclude_defaults=True)
    return {name: f"{value:f}" if isinstance(value, Decimal) else value for name, value in values.items()}


# --- Archiving and deletion ---

#: Runs are counted up to this number: counting more would take time, and tell a person nothing.
MAX_COUNT = 1000


def in_progress(project: Project) -> int:
    """Return the number of runs and flow runs of this site that are queued, running or waiting, at most `MAX_COUNT`."""
    rows = (AgentRun.objects.in_progress(), FlowRun.objects.filter(status__in=LIVE))
    return min(sum(each.filter(project=project).order_by()[:MAX_COUNT].count() for each in rows), MAX_COUNT)


def being_recorded(project: Project) -> int:
    """Return the number of recorded runs that have not ended, at most `MAX_COUNT`. They do not prevent archiving."""
    return AgentRun.objects.being_recorded().filter(project=project).order_by()[:MAX_COUNT].count()


def archive(project: Project, *, by: Actor) -> Project:
    """Archive a project. Raises `NotArchivable` while runs are in progress: they could no longer be answered or
    stopped.

    A run that is created concurrently continues to its end. Paused runs stay paused until the project is unarchived.
    Recorded runs do not prevent archiving: events from their programs are refused while the project is archived.
    """
    refuse_in_progress(project)
    return archive_project(project, actor=by)


def refuse_in_progress(project: Project) -> None:
    """Raise `NotArchivable` while runs are in progress."""
    if count := in_progress(project):
        raise NotArchivable(f"{_runs_are(count)} in progress: stop them, or wait until they end")


def _runs_are(count: int) -> str:
    return "1 run is" if count == 1 else f"{count} runs are"


#: The objects of a project that users know, in display order. The events of runs are counted separately.
_COUNTED: dict[str, QuerySet[Any]] = {
    "runs": AgentRun.objects.all(),
    "flow_runs": FlowRun.objects.all(),
    "agents": Agent.objects.all(),
    "flows": Flow.objects.all(),
    "members": Membership.objects.all(),
    "api_keys": ApiKey.objects.all(),
    "sinks": Sink.objects.all(),
    "alert_rules": AlertRule.objects.all(),
    "schedules": Schedule.objects.all(),
    "imports": FileImport.objects.all(),
    "transcripts": ClaudeTranscript.objects.all(),
    "graph_threads": GraphThread.objects.all(),
}
EVENTS = "events"


@dataclass(frozen=True)
class DeletionPreview:
    """The objects that the deletion of a project would delete, and the reason for a refusal, if any."""

    counts: dict[str, int]
    refusal: Conflict | None


def preview(project: Project) -> DeletionPreview:
    """Return the preview of a deletion. One query for each count."""
    return DeletionPreview(_counts(project), _refusal(project))


def delete_project(project: Project, *, confirmation: str, by: Actor) -> dict[str, int]:
    """Hide a project, so that workers delete it, and return the numbers of its objects. Cannot be undone.

    `confirmation` must be the slug of the project. Raises `NotConfirmed`, `NotArchivable` while runs are in progress,
    or `Conflict` with the code `project_not_archived`, `runs_on_hold` or `imports_in_progress`. The caller checks the
    permission (Action.MANAGE).
    """
    if confirmation != project.slug:
        raise NotConfirmed(f"to confirm, enter the slug {project.slug}")
    with transaction.atomic():
        # FOR UPDATE, not FOR NO KEY UPDATE: it waits for transactions that add a run, which the checks below then see.
        locked = Project.objects.select_for_update().filter(pk=project.pk).first()
        if locked is None:
            raise ProjectNotFound
        if (refusal := _refusal(locked)) is not None:
            raise refusal
        counts = _counts(locked)
        hide_project(locked, actor=by, row_counts=counts)
    return counts


def _refusal(project: Project) -> Conflict | None:
    """Return why a project cannot be deleted now; None if it can."""
    if project.archived_at is None:
        return Conflict("only an archived project can be deleted: archive it first", code="project_not_archived")
    try:
        refuse_in_progress(project)
    except NotArchivable as refusal:
        return refusal
    held = AgentRun.objects.filter(project=project, held_at__isnull=False)
    if count := held.count():
        return Conflict(f"{_runs_are(count)} on hold: `agentops retention release` releases one", code="runs_on_hold")
    if FileImport.objects.unfinished().filter(project=project).exists():
        return Conflict("files are being imported: wait until their imports end", code="imports_in_progress")
    return None


def _counts(project: Project) -> dict[str, int]:
    """Return the numbers of a project's objects by name, in display order."""
    events = Log.objects.filter(project=project).aggregate(events=Sum("last_seq"))["events"] or 0
    counts = {name: rows.filter(project=project).order_by().count() for name, rows in _COUNTED.items()}
    runs = {name: counts.pop(name) for name in ("runs", "flow_runs")}
    return {**runs, EVENTS: events, **counts}
