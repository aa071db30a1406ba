"""What a project may use in a day: the only writer of it, with its audit entry.

Workers read it when they take a run: a change holds within a slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from agentops.projects.audit import Actor, AuditAction, record
from agentops.projects.models import Project
from runs.agents import budgets


def of(project: Project) -> dict[str, Any]:
    """As they were written; raises `InvalidBudget` where nobody can read them."""
    budgets.of_day(project.settings)
    return dict(project.settings.get("budgets") or {})


def change(project: Project, changes: Mapping[str, Any], *, by: Actor) -> dict[str, Any]:
    """Set the budgets that `wanted` names, or lift those that it gives null; the budgets as they are then.

    Raises `InvalidBudget`, and then nothing was written. What could not be read before is replaced.
    """
    with transaction.atomic():
        locked = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        settings = locked.settings if isinstance(locked.settings, dict) else {}
        before = settings.get("budgets")
        known = before if isinstance(before, dict) else {}
        after = {name: value for name, value in {**known, **changes}.items() if value is not None}
        budgets.of_day({"budgets": after})
        if after != (before or {}):
            locked.settings = {**settings, "budgets": after}
            locked.save(update_fields=["settings"])
            was, now = {"budgets": before}, {"budgets": after}
            record(by, AuditAction.PROJECT_CHANGED, project=locked, obj=locked, before=was, after=now)
    return after
