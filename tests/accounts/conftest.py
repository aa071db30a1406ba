"""Fixtures for access tests: a project, a foreign project, and every kind of user and API key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User

from agentops.accounts.access import SYSTEM, Principal, principal_for_key, principal_for_user
from agentops.accounts.keys import create_key
from agentops.accounts.memberships import add_member, create_project
from agentops.accounts.models import Project, Role

MakeMember = Callable[..., User]


@pytest.fixture
def project(db: None) -> Project:
    return create_project("alpha", "Alpha", actor=SYSTEM)


@pytest.fixture
def foreign(db: None) -> Project:
    return create_project("beta", "Beta", actor=SYSTEM)


@pytest.fixture
def member(project: Project) -> MakeMember:
    """Create a user and add them to the project: `member("bob", Role.VIEWER)`."""

    def make(name: str, role: str | None = None, *, of: Project | None = None, superuser: bool = False) -> User:
        user = User.objects.create(username=name, is_superuser=superuser, is_staff=superuser)
        if role:
            add_member(of or project, user, role, actor=SYSTEM)
        return user

    return make


@pytest.fixture
def cast(project: Project, foreign: Project, member: MakeMember) -> dict[str, Principal]:
    """The users and keys of the access matrix, by column name. The foreign project has members and keys too."""
    from django.contrib.auth.models import AnonymousUser

    member("zoe", Role.ADMIN, of=foreign)
    create_key(foreign, name="theirs", scopes=["read", "write", "ingest"], actor=SYSTEM)
    people = {role.value: principal_for_user(member(f"{role}-1", role)) for role in Role}
    keys = {
        f"key:{scope}": principal_for_key(create_key(project, name=scope, scopes=[scope], actor=SYSTEM).key)
        for scope in ("ingest", "read", "write")
    }
    boss = principal_for_user(member("boss", superuser=True))
    return {"anon": principal_for_user(AnonymousUser()), **people, **keys, "superuser": boss}
