"""Rows that a module of tests writes once, because writing them takes longer than any test that looks at them.

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
from tests.support.admin.staff import client_of
from tests.support.factories import make_project


@dataclass(frozen=True)
class Filled:
    """A project, its run to which most rows belong, and the client of a superuser."""

    project: Project
    run: AgentRun
    client: Client


@contextmanager
def rolled_back(django_db_blocker: Any) -> Iterator[None]:
    """Allow the database to a fixture of a module, and undo at its end what it wrote. Its tests take `db` too."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


def make_filled(rows: int = 3) -> Filled:
    """A project with as many rows in each table."""
    fill_global()
    project = make_project("alpha")
    run = fill(project, rows=rows)
    return Filled(project, run, client_of(User.objects.create_superuser("boss")))
