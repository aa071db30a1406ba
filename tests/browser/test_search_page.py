"""Test the search in a browser: queries, filters, links to the timeline, and use without JavaScript."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import Tabs
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.run_checks import index_all, note
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def run(web: WebThread) -> AgentRun:
    run = drive(make_run(make_agent(slug="reviewer")))
    note(run, "needle <img src=x onerror=alert(1)> 100% שלום needle", "needle " * 400)
    index_all()
    return run


@pytest.mark.parametrize("javascript", [True, False])
def test_a_search_result_links_to_its_place(tabs: Tabs, web: WebThread, run: AgentRun, javascript: bool) -> None:
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER), javascript=javascript)
    page.goto(f"/p/{run.project.slug}/runs")
    page.get_by_role("link", name="Search", exact=True).click()
    expect(page.get_by_role("heading", name="Search all runs")).to_be_visible()
    page.get_by_role("searchbox").fill("golangci")
    page.keyboard.press("Enter")
    expect(page.locator(".result mark").first).to_have_text("golangci")
    expect(page).to_have_url(re.compile("q=golangci"))

    page.get_by_role("searchbox").fill("needle 100%")
    page.get_by_label("In", exact=True).select_option("event")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".result")).to_have_count(1)
    expect(page.locator(".result-text")).to_contain_text("<img src=x onerror=alert(1)>")
    if javascript:
        page.keyboard.press("Escape")
        page.locator("h1").click()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
    else:
        page.locator(".result-title").click()
    expect(page.locator(".is-target")).to_contain_text("x.note")
    # After going back, the results are still displayed.
    page.go_back()
    expect(page.locator(".result")).to_have_count(1)


def test_searching_in_one_run_by_keyboard(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER), viewport={"width": 390, "height": 800})
    page.goto(f"/runs/{run.pk}")
    page.locator(".tabs").get_by_role("link", name="Search").click()
    expect(page.get_by_role("heading", name="Search in this run")).to_be_visible()
    page.locator("h1").click()
    page.keyboard.press("/")
    page.keyboard.type("zzz nowhere")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
    page.get_by_role("link", name="Search all runs").click()
    expect(page).not_to_have_url(re.compile("run="))
    page.get_by_role("searchbox").fill("a b c d e f g h i j k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("at most 10 terms")
    # The page is not wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(f"/p/{run.project.slug}/search?q=needle")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
