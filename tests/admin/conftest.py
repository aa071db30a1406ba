"""Who looks at the administration: a superuser, and a member of staff who sees one project."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from agentops.projects.models import Project, Role
from tests.make import make_project
from tests.web.people import make_person

OURS = ("projects", "timeline", "runs")


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


def make_staff(project: Project, role: Role = Role.ADMIN, *, password: str | None = None) -> User:
    """Somebody with all of Django's rights, who is no superuser: what is kept from them, memberships keep."""
    person = make_person(project, role, password=password)
    person.is_staff = True
    person.save()
    person.user_permissions.set(Permission.objects.all())
    return person


def client_of(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client
