"""Staff users, signed-in clients, and the pages that they see."""

from __future__ import annotations

import re

from django.contrib.auth.models import Permission, User
from django.test import Client

from agentops.accounts.models import Project, Role
from tests.support.accounts import make_person

#: Values that change with every response.
FRESH = re.compile(
    r'csrfmiddlewaretoken" value="[^"]+"|<code>[0-9a-f]{32}</code>|data-copy="[0-9a-f]{32}"|data-now="[^"]+"'
    r'|"X-CSRFToken": "[^"]+"'
)


def make_staff(project: Project, role: Role = Role.ADMIN, *, password: str | None = None) -> User:
    """Create a staff user with all Django permissions. Only memberships limit which rows the user can see."""
    person = make_person(project, role, password=password)
    person.is_staff = True
    person.save()
    person.user_permissions.set(Permission.objects.all())
    return person


def client_of(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def seen(client: Client, url: str) -> tuple[int, str]:
    """Return the status and the text of a page, without the values that change with every response."""
    answer = client.get(url)
    return answer.status_code, FRESH.sub("", answer.content.decode())
