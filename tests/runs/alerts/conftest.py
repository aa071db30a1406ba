"""Fixtures for alert tests: a project with an operator, its rules, and a clock that a test sets."""

from __future__ import annotations

from typing import Any

import pytest

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Project, Role
from runs.alerts.alert_rule_changes import add_rule
from runs.models import AlertRule
from tests.support.factories import make_person, make_project
from tests.support.project_rows import AddRule, Clock


@pytest.fixture
def project(db: None) -> Project:
    project = make_project("alpha")
    make_person(project, Role.OPERATOR)
    return project


@pytest.fixture
def rule(project: Project) -> AddRule:
    def make(kind: str, **values: Any) -> AlertRule:
        return add_rule(project, {"name": values.pop("name", kind), "kind": kind, **values}, by=SYSTEM)[0]

    return make


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
