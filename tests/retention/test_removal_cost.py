"""The cost of a deletion does not grow with the site: every reference to a deleted row is looked up by an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from django.db.models import Q

from runs.upkeep.group_removal import HEADS, PARTS
from timeline.models import Log

REMOVED = {table.model for table in (*PARTS, *HEADS)} | {Log}


def _references() -> Iterator[Any]:
    for model in apps.get_models():
        for field in model._meta.concrete_fields:
            if isinstance(field, models.ForeignKey) and field.related_model in REMOVED:
                yield field


def _is_indexed(field: Any) -> bool:
    """Return whether an index begins with the field and covers all rows, or all rows where the field is not null."""
    meta = field.model._meta
    if field.db_index or field.unique or field.primary_key:
        return True
    unique = [each for each in meta.constraints if isinstance(each, models.UniqueConstraint)]
    every_row = (None, Q(**{f"{field.name}__isnull": False}))
    return any(_first(each) == field.name and each.condition in every_row for each in (*meta.indexes, *unique))


def _first(index: Any) -> str:
    """Return the name of the first field of an index or a constraint; empty if it begins with an expression."""
    if index.fields:
        return str(index.fields[0])
    return str(getattr(index.expressions[0], "name", ""))


@pytest.mark.parametrize("field", list(_references()), ids=str)
def test_a_reference_to_removed_rows_is_indexed_or_not_checked(field: Any) -> None:
    """For each deleted row, the database looks up referring rows; without an index it scans the whole table."""
    assert not field.db_constraint or _is_indexed(field)
