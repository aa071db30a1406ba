"""Rows that a test module writes once, because writing them takes longer than any test that reads them.

May import the product's models and the suite's builders.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from agentops.accounts.models import Project
from runs.models import AgentRun
from tests.support.admin.every_table import fill, fill_global
from tests.support.factories import make_project


@dataclass(frozen=True)
class Filled:
    """A project, the run to which most of its rows belong, and the client of a superuser."""

    project: Project
    run: AgentRun
    client: Client


@contextmanager
def rolled_back(django_db_blocker: Any) -> Iterator[None]:
    """Give a module-scoped fixture access to the database, and roll back its writes at the end. Its tests use `db`."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


def make_filled(rows: int = 3) -> Filled:
    """Create a project with `rows` rows in each table."""
    fill_global()
    project = make_project("alpha")
    run = fill(project, rows=rows)
    return Filled(project, run, superuser_client())


def superuser_client() -> Client:
    """Return the client of a new superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client
