"""Manage a project in a browser: a key, a member, the retention and the audit log, with scripts and without."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import expect

from agentops.accounts.models import Project, Role
from runs.models import AgentRun
from tests.support.browser import Tabs
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def project(web: WebThread) -> Project:
    project = make_project("alpha")
    run = drive(make_run(make_agent(project, slug="helper")))
    ended = timezone.now() - timedelta(days=40)
    AgentRun.objects.filter(pk=run.pk).update(created_at=ended, queued_at=ended, completed_at=ended)
    User.objects.create_user("bob", email="bob@example.org")
    return project


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_an_admin_manages_the_project(tabs: Tabs, web: WebThread, project: Project, javascript: bool) -> None:
    alice = make_person(project, Role.ADMIN)
    page = tabs.open(web.url, alice, javascript=javascript)
    page.goto("/p/alpha/runs")
    bar = page.get_by_role("navigation", name="Project")

    # Each task takes two clicks: the settings and the button.
    bar.get_by_role("link", name="Settings").click()
    section = page.get_by_role("region", name="Create an API key")
    section.get_by_label("Name").fill("ci")
    section.get_by_role("button", name="Create API key").click()
    expect(page.get_by_role("status").get_by_text("only once")).to_be_visible()
    assert re.fullmatch(r"aok_test_\w{12}_\w{49}", page.locator("#secret").inner_text())
    expect(page.locator("#example")).to_contain_text("/api/projects/alpha/agent-runs?limit=1")

    bar.get_by_role("link", name="Settings").click()
    section = page.get_by_role("region", name="Add a member")
    section.get_by_label("Username or e-mail address").fill("bob")
    section.get_by_role("button", name="Add or invite").click()
    expect(page.get_by_text("bob is operator of Alpha now.")).to_be_visible()

    page.get_by_role("navigation", name="Settings").get_by_role("link", name="Retention").click()
    page.get_by_label("Days after the end of a run").fill("30")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Would delete up to 1 run")).to_be_visible()
    page.get_by_role("button", name="Set retention to 30 days").click()
    expect(page.get_by_text("Retention saved. Runs are deleted 30 days after they ended.")).to_be_visible()

    page.get_by_role("navigation", name="Settings").get_by_role("link", name="Audit log").click()
    page.get_by_label("Who").fill(alice.username)
    page.get_by_role("button", name="Filter").click()
    rows = page.get_by_role("row")
    expect(rows.nth(1)).to_contain_text("project.changed")
    expect(rows.nth(2)).to_contain_text("member.added")
    expect(rows.nth(3)).to_contain_text("key.created")
    rows.nth(1).get_by_text("Show").click()
    expect(rows.nth(1).locator(".payload").last).to_contain_text('"retention_days": 30')

    bar.get_by_role("link", name="Agents").click()
    page.get_by_role("link", name="Edit helper").click()
    expect(page).to_have_url(re.compile("/agents/helper/edit"))
