"""Test the start page in a browser: an approval is decided, and a first run replaces the empty page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import Tabs
from tests.support.factories import make_awaiting_approval, make_failed, make_person, make_project
from tests.support.project_rows import external
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_open_items_are_resolved_on_the_start_page(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    project = make_project("alpha")
    run, failed = make_awaiting_approval(project), make_failed(project, "It broke.")
    page = tabs.open(web.url, make_person(project, Role.OPERATOR), javascript=javascript)
    page.goto("/")
    expect(page).to_have_url(re.compile("/p/alpha$"))
    bell = page.locator("#bell")
    expect(bell).to_have_attribute("title", "Needs you: 2")
    page.get_by_role("button", name="Dismiss It broke.").click()
    expect(bell).to_have_attribute("title", "Needs you: 1")
    page.locator(f"#entry-{run.approvals.get().pk} summary").first.click()
    page.get_by_role("button", name="Approve call", exact=True).click()

    expect(page).to_have_url(re.compile("/p/alpha$"))
    expect(page.get_by_text("Nothing needs you.")).to_be_visible()
    expect(bell).to_have_attribute("title", "Needs you: nothing")
    assert AgentRun.objects.get(pk=run.pk).status == "queued"
    page.locator(".chart-table summary").first.click()
    expect(page.locator(".chart-table tbody tr").first).to_be_visible()
    page.get_by_role("link", name="All charts").click()
    page.get_by_role("link", name="30 days").click()
    expect(page.locator(".chart")).to_have_count(4)
    if not javascript:
        return
    page.keyboard.press("g")
    page.keyboard.press("h")
    expect(page).to_have_url(re.compile("/p/alpha$"))
    # Later items appear without a reload, also in the title.
    make_failed(project, "It broke again.")
    expect(page.get_by_role("link", name="It broke again.")).to_be_visible()
    expect(page).to_have_title(re.compile(r"^\(1\) Overview"))
    assert failed.pk != run.pk


def test_an_external_waiting_session_appears_and_disappears_live(tabs: Tabs, web: WebThread) -> None:
    project = make_project("alpha")
    external(project, "claude", {"type": "run.phase", "payload": {"status": "running"}})
    page = tabs.open(web.url, make_person(project, Role.OPERATOR))
    page.goto("/p/alpha")
    expect(page.get_by_text("Nothing needs you.")).to_be_visible()
    run = external(project, "claude", {"type": "run.waiting", "payload": {"reason": "approval"}})
    expect(page.get_by_text("The permission is given where the agent runs, not here.")).to_be_visible()
    expect(page.locator("#bell")).to_have_attribute("title", "Needs you: 1")
    external(project, "claude", {"type": "run.phase", "payload": {"status": "running"}})
    expect(page.get_by_text("Nothing needs you.")).to_be_visible()
    expect(page.locator("#bell")).to_have_attribute("title", "Needs you: nothing")

    external(project, "claude", {"type": "run.waiting", "payload": {"reason": "input"}})
    page.get_by_role("link", name="Show run").click()
    expect(page).to_have_url(re.compile(f"/runs/{run.pk}$"))


def test_an_empty_project_shows_its_first_run_live(tabs: Tabs, web: WebThread) -> None:
    project = make_project("alpha")
    page = tabs.open(web.url, make_person(project, Role.ADMIN))
    page.goto("/p/alpha")
    expect(page.get_by_role("button", name="Start the demo agent")).to_be_visible()
    make_failed(project)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
