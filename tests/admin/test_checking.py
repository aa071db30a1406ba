"""The button that checks all stored data: superusers only, with a time limit, and without changes."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project, Role
from runs.admin import run_admin
from runs.models import AgentRun
from runs.upkeep.invariants import INVARIANTS
from tests.support.admin.every_table import list_url
from tests.support.admin.staff import client_of, make_staff
from tests.support.factories import make_agent, make_run

LIST = list_url(AgentRun)
CHECK = f"{LIST}check/"
BUTTON = "Check invariants of all runs"


def test_a_passed_check_shows_a_message(client: Client, project: Project) -> None:
    make_run(make_agent(project))
    assert BUTTON in client.get(LIST).content.decode()

    answer = client.post(CHECK)

    assert answer.status_code == 200
    assert f"All {len(INVARIANTS)} invariants hold" in answer.content.decode()


def test_violations_are_reported_with_their_location(client: Client, project: Project, other: Project) -> None:
    good, bad = make_run(make_agent(project)), make_run(make_agent(other))
    AgentRun.objects.filter(pk=bad.pk).update(step_count=3, status="completed", completed_at=timezone.now())
    before = AuditEntry.objects.count()

    text = client.post(CHECK).content.decode()

    assert "E5 violated: a run that ended has exactly one final event" in text
    assert str(bad.pk) in text
    assert str(good.pk) not in text
    assert AuditEntry.objects.count() == before


def test_skipped_checks_are_reported_after_the_time_limit(
    client: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_admin, "WITHIN_S", 0.0)

    text = client.post(CHECK).content.decode()

    assert f"Checked 0 of {len(INVARIANTS)} invariants" in text
    assert "invariants hold" not in text


@pytest.mark.parametrize("role", Role)
def test_only_superusers_may_check(project: Project, role: Role) -> None:
    staff = client_of(make_staff(project, role))

    assert BUTTON not in staff.get(LIST).content.decode()
    assert staff.post(CHECK).status_code == 403
    assert Client().post(CHECK).status_code == 302


def test_get_and_cross_site_requests_are_refused(client: Client, project: Project) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies

    assert client.get(CHECK).status_code == 405
    assert strict.post(CHECK).status_code == 403
