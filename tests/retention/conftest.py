"""Fixtures for retention tests: runs that ended long ago, and helpers that count their rows."""

from __future__ import annotations

import pytest

from agentops.accounts.models import Project
from runs.models import Agent
from tests.support.factories import make_agent, make_project


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def agent(project: Project) -> Agent:
    return make_agent(project, slug="player")
