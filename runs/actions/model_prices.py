"""The prices that a project sets for models: their only writer, with an audit entry for each change.

Workers read them when they claim a run, so a change takes effect within a slice. Costs that are stored stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from agentops.projects.audit import Actor, AuditAction, record
from agentops.projects.models import Project
from runs.agents.prices import InvalidPrices, ModelPrice, prices_of


def set_price(project: Project, price: Mapping[str, Any], *, by: Actor) -> list[ModelPrice]:
    """Set the price of a pattern, in place of an earlier one. Returns all prices of the project.

    Raises `InvalidPrices`, and writes nothing then.
    """
    return _change(project, str(price.get("model", "")), dict(price), by)


def remove_price(project: Project, pattern: str, *, by: Actor) -> list[ModelPrice]:
    """Remove the price of a pattern. Returns the prices that are left. Raises `InvalidPrices` if it has none."""
    return _change(project, pattern, None, by)


def _change(project: Project, pattern: str, price: dict[str, Any] | None, by: Actor) -> list[ModelPrice]:
    with transaction.atomic():
        locked = Project.objects.locked(project)
        settings = locked.settings if isinstance(locked.settings, dict) else {}
        before = [_document(each) for each in prices_of(settings)]
        others = [each for each in before if each["model"] != pattern]
        if price is None and len(others) == len(before):
            raise InvalidPrices(f"the project has no price for {pattern[:200]!r}")
        checked = prices_of({"prices": others if price is None else [*others, price]})
        after = sorted(map(_document, checked), key=lambda each: str(each["model"]))
        if after != before:
            locked.settings = {**settings, "prices": after}
            locked.save(update_fields=["settings"])
            was, now = {"prices": before}, {"prices": after}
            record(by, AuditAction.PROJECT_CHANGED, project=locked, obj=locked, before=was, after=now)
    return sorted(checked, key=lambda each: each.model)


def _document(price: ModelPrice) -> dict[str, str]:
    """Return a price as JSON: amounts as text, which keeps their digits."""
    values = price.model_dump(exclude_none=True)
    return {name: value if isinstance(value, str) else f"{value:f}" for name, value in values.items()}
