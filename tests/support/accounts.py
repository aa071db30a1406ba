"""Users with a session, and API keys, as the HTTP headers that a browser or a program sends.

May import the product's models and actions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from agentops.accounts.access import SYSTEM
from agentops.accounts.keys import create_key
from agentops.accounts.login.addresses import mark_verified
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Project, Role

PASSWORD = "a long password for the tests 1"
_numbers = itertools.count(1)


def make_person(project: Project | None = None, role: Role = Role.OPERATOR, *, password: str | None = None) -> User:
    """Create a user, and add it to `project` if given. Without a password, only `session_of` can sign the user in."""
    person = User.objects.create_user(f"person-{next(_numbers)}", password=password)
    if project is not None:
        add_member(project, person, role, actor=SYSTEM)
    return person


def verify_address(person: User) -> User:
    """Mark the user's email address as verified, as opening the emailed link does."""
    mark_verified(person, person.email.lower(), actor=SYSTEM)
    return person


def session_of(person: User) -> str:
    """Return the value of a fresh session cookie."""
    client = Client()
    client.force_login(person)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def signed_in(person: User) -> dict[str, str]:
    return {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session_of(person)}"}


def with_key(project: Project, *scopes: str) -> dict[str, str]:
    made = create_key(project, name="a program", scopes=scopes or ("read",), actor=SYSTEM)
    return {"Authorization": f"Bearer {made.plain}"}


def key_prefix(headers: Mapping[str, str]) -> str:
    """Return the visible prefix of the key in the headers of `with_key`."""
    return headers["Authorization"].removeprefix("Bearer ").rpartition("_")[0]
