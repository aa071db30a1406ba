"""Test the bell and the notifications in a browser: updated live, and read with scripts and without."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts import notifications
from agentops.accounts.models import Role
from agentops.accounts.notifications import notify
from runs.lifecycle import inbox
from runs.models import AgentRun
from tests.support.browser import Tabs, live, open_run, status
from tests.support.factories import make_agent, make_person, make_run
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def run(web: WebThread) -> AgentRun:
    return make_run(make_agent(), "Look into it.")


def tell(run: AgentRun, title: str = "Escalated: Look into it.", text: str = "") -> None:
    notify(run.project_id, kind="escalated", title=title, text=text, run_id=run.pk)


def bell(page: Page, words: str) -> None:
    expect(page.locator("#bell")).to_have_attribute("title", words)


def test_the_bell_updates_on_open_pages(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    person = make_person(run.project, Role.VIEWER)
    listed, shown = tabs.open(web.url, person), tabs.open(web.url, person)
    listed.goto(f"/p/{run.project.slug}/runs")
    open_run(shown, run)
    for page in (listed, shown):
        live(page)
        bell(page, "Needs you: nothing")
        expect(page).not_to_have_title(re.compile(r"^\("))
    inbox.pause(run.pk, by="test")

    for page in (listed, shown):
        bell(page, "Needs you: 1")
        expect(page).to_have_title(re.compile(r"^\(1\) "))
    status(shown, "paused")
    assert shown.locator("#bell").count() == 1
    shown.locator("#bell").click()
    shown.get_by_role("link", name="Look into it.").click()
    expect(shown.locator("h1")).to_have_text("Look into it.")
    inbox.stop(run.pk, by="test")
    bell(listed, "Needs you: nothing")
    expect(listed).not_to_have_title(re.compile(r"^\("))


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_notifications_are_read_one_by_one_or_all_at_once(
    tabs: Tabs, web: WebThread, run: AgentRun, javascript: bool
) -> None:
    for number in range(3):
        tell(run, f"Escalated: {number}", text=HOSTILE)
    person = make_person(run.project, Role.OPERATOR)
    page = tabs.open(web.url, person, javascript=javascript)
    page.goto(f"/p/{run.project.slug}/notifications")
    expect(page.locator(".notice.unread")).to_have_count(3)
    page.get_by_role("button", name="Mark as read: Escalated: 1").click()
    expect(page.locator(".notice.unread")).to_have_count(2)
    page.get_by_role("button", name="Mark all as read").click()

    expect(page.get_by_text("Marked 2 as read.")).to_be_visible()
    expect(page.locator(".notice.unread")).to_have_count(0)
    expect(page.get_by_role("button", name="Mark all as read")).to_have_count(0)
    assert notifications.unread_count(run.project_id, person.pk) == 0
