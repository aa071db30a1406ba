"""Test the list of runs in a browser: it announces new runs, updates rows in place, and never moves them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.browser import GONE, Tabs
from tests.support.factories import PASSWORD, make_agent, make_person, make_run
from tests.support.web_server import WebThread
from timeline.events.run import RunPaused, RunStopped
from timeline.models import Source

pytestmark = [pytest.mark.browser]


@pytest.fixture
def runs(web: WebThread) -> list[AgentRun]:
    """Create three runs of one agent, oldest first."""
    agent = make_agent()
    return [make_run(agent, f"Task number {number}") for number in range(3)]


def open_list(tabs: Tabs, web: WebThread, runs: list[AgentRun], query: str = "", **options: object) -> Page:
    project = runs[0].project
    page = tabs.open(web.url, make_person(project, Role.OPERATOR), **options)
    page.goto(f"/p/{project.slug}/runs{query}")
    return page


def stop_asking(page: Page) -> None:
    """Disable polling from the next load on, so that the page gets updates only from the stream."""
    page.add_init_script(
        "const later = setTimeout; setTimeout = (act, ms, ...rest) => (ms === 5000 ? 0 : later(act, ms, ...rest));"
    )


def titles(page: Page) -> list[str]:
    return page.locator("tr.run td.title a").all_inner_texts()


@pytest.mark.smoke
def test_login_returns_to_the_list(tabs: Tabs, web: WebThread, runs: list[AgentRun]) -> None:
    person = make_person(runs[0].project, password=PASSWORD)
    tabs.expect("answered 422|the server responded with a status of 422")
    page = tabs.open(web.url)
    page.goto(f"/p/{runs[0].project.slug}/runs?status=queued")
    expect(page).to_have_url(re.compile("/login"))
    page.get_by_label("Username").fill(person.username)
    page.get_by_label("Password").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()

    expect(page).to_have_url(f"{web.url}/p/{runs[0].project.slug}/runs?status=queued")
    assert titles(page) == ["Task number 2", "Task number 1", "Task number 0"]
    page.get_by_label(f"Account: {person.username}").click()
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(re.compile("/login"))
    page.goto(f"/p/{runs[0].project.slug}/runs")
    expect(page).to_have_url(re.compile("/login"))


def test_new_runs_are_counted_and_rows_stay_in_place(tabs: Tabs, web: WebThread, runs: list[AgentRun]) -> None:
    page = open_list(tabs, web, runs)
    expect(page.locator("#connection")).to_have_text("Live")
    before = titles(page)
    for number in range(2):
        make_run(runs[0].project.agents.get(), f"New number {number}")
        expect(page.locator("#new-runs")).to_have_text(f"{number + 1} new run{'s' * (number > 0)}")

    assert titles(page) == before
    page.locator("#new-runs a").click()
    expect(page.locator("tr.run")).to_have_count(5)
    assert titles(page)[:2] == ["New number 1", "New number 0"]


def test_a_row_updates_in_place(tabs: Tabs, web: WebThread, runs: list[AgentRun]) -> None:
    page = open_list(tabs, web, runs)
    stop_asking(page)
    page.reload()
    expect(page.locator("#connection")).to_have_text("Live")
    row = page.locator(f"#run-{runs[1].pk}")
    expect(row.locator(".status")).to_have_text("queued")
    before = titles(page)
    for status, event in ((RunStatus.PAUSED, RunPaused), (RunStatus.STOPPED, RunStopped)):
        transitions.move(runs[1], status, event(reason="operator"), source=Source.WEB, reason="operator")
        expect(row.locator(".status")).to_have_text(status)

    # A pressed row updates when the button is released: browsers fire no click event for a replaced element.
    row = page.locator(f"#run-{runs[2].pk}")
    row.get_by_role("checkbox").hover()
    page.mouse.down()
    for run in (runs[2], runs[0]):
        transitions.move(run, RunStatus.PAUSED, RunPaused(reason="operator"), source=Source.WEB, reason="operator")
    expect(page.locator(f"#run-{runs[0].pk} .status")).to_have_text("paused")
    expect(row.locator(".status")).to_have_text("queued")
    page.mouse.up()
    expect(row.locator(".status")).to_have_text("paused")
    expect(row.get_by_role("checkbox")).to_be_checked()
    assert titles(page) == before


def test_a_new_run_hidden_by_the_filters_is_not_counted(tabs: Tabs, web: WebThread, runs: list[AgentRun]) -> None:
    page = open_list(tabs, web, runs, "?q=number+1")
    expect(page.locator("#connection")).to_have_text("Live")
    make_run(runs[0].project.agents.get(), "Task number 7")
    make_run(runs[0].project.agents.get(), "Task number 11")

    expect(page.locator("#new-runs")).to_have_text("1 new run")
    assert titles(page) == ["Task number 1"]


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_filters_are_in_the_url(tabs: Tabs, web: WebThread, runs: list[AgentRun], javascript: bool) -> None:
    transitions.move(runs[1], RunStatus.STOPPED, RunStopped(reason="operator"), source=Source.WEB, reason="operator")
    page = open_list(tabs, web, runs, javascript=javascript)
    page.locator("label.chip", has_text="stopped").click()
    page.get_by_role("button", name="Apply filters").click()
    expect(page).to_have_url(re.compile(r"status=stopped"))
    expect(page.locator("tr.run")).to_have_count(1)
    assert titles(page) == ["Task number 1"]
    expect(page.get_by_role("checkbox", name="stopped")).to_be_checked()

    page.locator("tr.run td.title a").click()
    page.go_back()
    expect(page).to_have_url(re.compile(r"status=stopped"))
    assert titles(page) == ["Task number 1"]
    page.get_by_role("link", name="Clear filters").click()
    expect(page.locator("tr.run")).to_have_count(3)


def test_the_list_stays_live_after_a_restart(tabs: Tabs, web: WebThread, runs: list[AgentRun]) -> None:
    tabs.expect(GONE)
    page = open_list(tabs, web, runs)
    expect(page.locator("#connection")).to_have_text("Live")
    web.stop()
    expect(page.locator("#connection")).to_contain_text("Reconnecting")
    web.start()
    expect(page.locator("#connection")).to_have_text("Live")
    make_run(runs[0].project.agents.get(), "After the restart")

    expect(page.locator("#new-runs")).to_have_text("1 new run")


def test_a_long_right_to_left_title_shows_its_beginning(tabs: Tabs, web: WebThread, runs: list[AgentRun]) -> None:
    """It is cut on the left, at its end. A left-to-right title is still cut on the right."""
    titles_of = {"rtl": "בדוק את המחירים של כל הספקים ברשימה " * 8, "ltr": "Compare the prices of all suppliers " * 8}
    for run, title in zip(runs, titles_of.values(), strict=False):
        AgentRun.objects.filter(pk=run.pk).update(title=title[:200])
    page = open_list(tabs, web, runs)

    shown = page.evaluate(
        """() => [...document.querySelectorAll("tr.run td.title a bdi")].map((title) => {
          const range = document.createRange();
          range.setStart(title.firstChild, 0);
          range.setEnd(title.firstChild, 5);
          const [text, cell] = [range.getBoundingClientRect(), title.closest("td").getBoundingClientRect()];
          return text.left >= cell.left && text.right <= cell.right && title.scrollWidth > 0;
        })"""
    )

    assert shown == [True] * 3
