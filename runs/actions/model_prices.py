"""The project's own prices of models. Only this module writes them, with an audit entry for each change.

Workers read them when they claim a run, so a change takes effect within a slice. Stored costs do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django.db import transaction

from agentops.accounts.audit import Actor, AuditAction, record
from agentops.accounts.models import Project
from runs.agents.prices import InvalidPrices, ModelPrice, prices_of


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
            locked.settings = {**settings, "prices": after}
            locked.save(update_fields=["settings"])
            was, now = {"prices": before}, {"prices": after}
            record(by, AuditAction.PROJECT_CHANGED, project=locked, obj=locked, before=was, after=now)
    return prices


def _name_of(pattern: str, tier: str, above: int) -> str:
    size = f" above {above:,} input tokens" if above else ""
    return f"{pattern[:200]!r}{f', tier {tier[:40]}' if tier else ''}{size}"


def _document(price: ModelPrice) -> dict[str, Any]:
    """Return a price as JSON: amounts as text, to keep their digits."""
    values = price.model_dump(exclude_defaults=True)
    return {name: f"{value:f}" if isinstance(value, Decimal) else value for name, value in values.items()}
