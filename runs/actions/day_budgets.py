"""The daily budgets of a project. Only this module writes them, with an audit entry for each change.

Workers read them when they claim a run, so a change takes effect within a slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from agentops.accounts.audit import Actor, AuditAction, record
from agentops.accounts.models import Project
from runs.agents import budgets


def of(project: Project) -> dict[str, Any]:
    """Return the budgets as stored. Raises `InvalidBudget` if they are unreadable."""
    budgets.day_limits(project.settings)
    return dict(project.settings.get("budgets") or {})


def change(project: Project, changes: Mapping[str, Any], *, by: Actor) -> dict[str, Any]:
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
            locked.settings = {**settings, "budgets": after}
            locked.save(update_fields=["settings"])
            was, now = {"budgets": before}, {"budgets": after}
            record(by, AuditAction.PROJECT_CHANGED, project=locked, obj=locked, before=was, after=now)
    return after
