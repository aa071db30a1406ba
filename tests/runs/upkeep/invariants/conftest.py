"""Fixtures for invariant tests: a database of clean rows, which tests corrupt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from tests.support.upkeep import World, make_world


@pytest.fixture(scope="module")
def clean_rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """Created once for a module, in a transaction that is rolled back: creating them takes longer than any test."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield make_world()
        transaction.set_rollback(True)


@pytest.fixture
def world(clean_rows: World, django_db_blocker: Any) -> Iterator[World]:
    """The clean rows; changes of a test are rolled back."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield clean_rows
        transaction.set_rollback(True)
