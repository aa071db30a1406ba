"""Test the tabs of a run in a browser, with scripts and without."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import Tabs, live, open_run, status
from tests.support.engine import driven, make_scripted
from tests.support.factories import drive, make_agent, make_awaiting_approval, make_person, make_run
from tests.support.timelines import grow
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
TABS = ("Waterfall", "Messages", "Tool calls", "Errors", "Files", "Cost", "State", "Events")


def tab(page: Page, name: str) -> None:
    page.locator(".run-tabs .tabs").get_by_role("link", name=re.compile(f"^{name}")).click()


@pytest.fixture
def run() -> AgentRun:
    return drive(make_run(make_agent(max_steps=4), "Look into it."))


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_every_tab_opens_and_links_to_the_timeline(tabs: Tabs, web: WebThread, run: AgentRun, javascript: bool) -> None:
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), javascript=javascript)
    open_run(page, run)
    for name in TABS:
        tab(page, name)
        expect(
            page.get_by_role("heading", level=2, name=re.compile(name if name != "State" else "State after"))
        ).to_have_count(1)
        status(page, "paused")
    tab(page, "Waterfall")
    page.locator(".waterfall .row-link").nth(1).click()
    expect(page.locator("#timeline .is-target")).to_be_visible()
    tab(page, "Tool calls")
    page.get_by_label("Status").select_option("completed")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="Timeline").nth(1).click()
    expect(page.locator("#timeline .card-tool.is-target")).to_be_visible()
    tab(page, "State")
    page.get_by_role("link", name="First").click()
    expect(page.locator("#tab .status")).to_have_text("queued")
    tab(page, "Events")
    page.get_by_label("Type").select_option(label="Tool calls")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator(".tab-table tbody th").first).to_have_text(re.compile(r"^tool\."))
    if javascript:
        page.locator(".event-json summary").first.click()
        expect(page.locator(".event-json").first).to_contain_text('type: "tool.')
        page.keyboard.press("/")
        page.keyboard.type("zzz nowhere")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()


def test_the_status_line_stays_visible_and_follows_the_run(tabs: Tabs, web: WebThread) -> None:
    run = make_scripted()
    grow(run, 60)
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run)
    live(page)
    expect(page.locator("#run-line")).to_be_in_viewport()
    calls = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    calls.goto(f"/runs/{run.pk}/calls")
    live(calls)
    with driven(run):
        pass
    status(page, "completed")
    expect(page.locator("#run-line")).to_be_in_viewport()
    expect(page.locator("#run-line")).to_contain_text("step 3")
    # The tab in the other window has updated too.
    expect(calls.locator("#run-line")).to_contain_text("completed", timeout=20_000)
    expect(calls.locator(".tab-table").first.locator("tbody tr")).to_have_count(3, timeout=20_000)


def test_an_approval_is_in_view(tabs: Tabs, web: WebThread) -> None:
    run = make_awaiting_approval()
    page = tabs.open(web.url, make_person(run.project, Role.ADMIN))
    open_run(page, run)
    expect(page.get_by_role("button", name="Approve call")).to_be_in_viewport()
    page.evaluate("scrollTo(0, 0)")
    page.locator(".line-reason").click()
    expect(page.get_by_role("button", name="Approve call")).to_be_in_viewport()
    expect(page.locator(".row-needs:visible")).to_have_count(1)
    page.locator("#needs .as-command summary").click()
    expect(page.locator("#needs .as-command")).to_contain_text(f"agentops run approve {run.pk}")
    page.get_by_role("button", name="Approve call").click()
    expect(page.locator("#needs .banner")).to_have_count(0)
