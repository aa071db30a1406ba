"""Fixtures for admin tests: a superuser, and rows in every table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentops.accounts.models import Project
from tests.support.admin_rows import Filled, make_filled, rolled_back
from tests.support.factories import make_project


@pytest.fixture
def boss(db: None) -> User:
    return User.objects.create_superuser("boss")


@pytest.fixture
def client(boss: User) -> Client:
    client = Client()
    client.force_login(boss)
    return client


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def other(db: None) -> Project:
    return make_project("beta")


@pytest.fixture(scope="module")
def kept_rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[Filled]:
    with rolled_back(django_db_blocker):
        yield make_filled()


@pytest.fixture
def filled(kept_rows: Filled, db: None) -> Filled:
    """Rows in every table, created once for a module and shared by its tests. Changes of a test are rolled back."""
    return kept_rows
