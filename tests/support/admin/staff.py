"""Members of staff, and clients that are signed in."""

from __future__ import annotations

from django.contrib.auth.models import Permission, User
from django.test import Client

from agentops.projects.models import Project, Role
from tests.support.accounts import make_person


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
