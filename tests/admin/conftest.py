"""Who looks at the administration: a superuser, and a member of staff who sees one project."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentops.projects.models import Project
from tests.support.factories import make_project

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
