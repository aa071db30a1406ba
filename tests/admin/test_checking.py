"""The button that checks all stored data: with a time limit, and without changes."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project
from agentops.admin import run_admin
from runs.models import AgentRun
from runs.upkeep.invariants import INVARIANTS
from tests.support.admin_rows import list_url
from tests.support.factories import make_agent, make_run

CHECK = f"{list_url(AgentRun)}check/"


def test_violations_are_reported_with_their_location(client: Client, project: Project, other: Project) -> None:
    good, bad = make_run(make_agent(project)), make_run(make_agent(other))
    assert "Check invariants of all runs" in client.get(list_url(AgentRun)).content.decode()
    assert f"All {len(INVARIANTS)} invariants hold" in client.post(CHECK).content.decode()
    AgentRun.objects.filter(pk=bad.pk).update(step_count=3, status="completed", completed_at=timezone.now())
    before = AuditEntry.objects.count()

    text = client.post(CHECK).content.decode()

    assert "E5 violated: a run that ended has exactly one final event" in text
    assert str(bad.pk) in text
    assert str(good.pk) not in text
    assert AuditEntry.objects.count() == before


def test_skipped_checks_are_reported_after_the_time_limit(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_admin, "WITHIN_S", 0.0)

    text = client.post(CHECK).content.decode()

    assert f"Checked 0 of {len(INVARIANTS)} invariants" in text
    assert "invariants hold" not in text


def test_get_and_cross_site_requests_are_refused(client: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies

    assert client.get(CHECK).status_code == 405
    assert strict.post(CHECK).status_code == 403
