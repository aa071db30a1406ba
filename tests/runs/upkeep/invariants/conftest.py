"""A database of clean rows, to be spoilt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from tests.support.upkeep.contradicting_rows import World, make_world


@pytest.fixture(scope="module")
def clean_rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """Written once for a module, in a transaction that is rolled back: writing them takes longer than any test."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield make_world()
        transaction.set_rollback(True)


@pytest.fixture
def world(clean_rows: World, django_db_blocker: Any) -> Iterator[World]:
    """The clean rows; what the test does to them is rolled back."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield clean_rows
        transaction.set_rollback(True)
