"""Fixtures for schedule tests: a project, and a clock that a test sets."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agentops.accounts.models import Project
from tests.support.factories import make_project
from tests.support.project_rows import SetClock


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return SetClock(monkeypatch, datetime(2026, 6, 1, 9, 0, 30, tzinfo=UTC))
