"""Test the replay player: it plays to the end, steps, scrubs, responds to keys, and requests only frames."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import Tabs, until
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.timelines import last_seq
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def run(web: WebThread) -> AgentRun:
    return drive(make_run(make_agent(max_steps=3)))


def visit(tabs: Tabs, web: WebThread, run: AgentRun, query: str = "", **options: object) -> Page:
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER), **options)
    page.goto(f"/runs/{run.pk}/replay{query}")
    return page


def at(page: Page, seq: int) -> None:
    expect(page.locator(".replay-moment")).to_have_attribute("data-seq", str(seq))
    expect(page.locator("#replay-scrub")).to_have_value(str(seq))


def test_the_player_plays_to_the_end(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    page, last = visit(tabs, web, run), last_seq(run)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    page.locator("#replay-speed").select_option("32")
    page.get_by_role("button", name="Play").click()
    at(page, last)
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    expect(page.locator(".replay-state .status")).to_have_text("paused")
    expect(page.locator("#replay-announce")).to_have_text(f"Event {last} of {last}")
    until(page, lambda: page.url.endswith(f"?seq={last}"), why="the address is that of the event")

    frame = re.compile(rf"GET {re.escape(web.url)}/runs/{run.pk}/replay/frame\?seq=\d+")
    assert asked
    assert all(frame.fullmatch(each) or "/static/" in each for each in asked), asked

    # At the end, Play starts from the beginning.
    with page.expect_response(lambda response: response.url.endswith("?seq=1")):
        page.get_by_role("button", name="Play").click()
    at(page, last)
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    shown = page.locator(".replay-rows").inner_text()
    page.reload()
    assert page.locator(".replay-rows").inner_text() == shown


def test_pausing_keeps_the_position(tabs: Tabs, web: WebThread) -> None:
    run = make_run(make_agent(max_steps=3))
    # Simulate a pause of a minute between the first two events.
    page = visit(tabs, web, drive(run))
    page.evaluate("document.querySelector('.replay-moment').dataset.ahead = '60000 60001'")
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    at(page, 1)
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    at(page, 1)


def test_the_player_steps_scrubs_and_responds_to_keys(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    page, last = visit(tabs, web, run, "?seq=4"), last_seq(run)
    at(page, 4)
    page.keyboard.press("ArrowRight")
    at(page, 5)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    at(page, 3)
    page.keyboard.press("End")
    at(page, last)
    page.keyboard.press("ArrowRight")
    at(page, last)
    page.keyboard.press("Home")
    at(page, 1)

    page.locator("#replay-scrub").fill("7")
    at(page, 7)
    page.locator("#replay-scrub").press("ArrowRight")
    at(page, 8)
    page.get_by_role("link", name="Next").click()
    at(page, 9)
    expect(page.get_by_role("link", name="Next")).to_be_focused()
    page.keyboard.press("Enter")
    at(page, 10)
    page.get_by_label("Event", exact=True).and_(page.locator("#replay-seq")).fill("6")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    at(page, 6)
    page.get_by_role("button", name="Go").focus()
    page.keyboard.press("ArrowRight")
    at(page, 7)


@pytest.mark.parametrize("width", [360, 1280])
def test_the_player_fits_the_screen(tabs: Tabs, web: WebThread, run: AgentRun, width: int) -> None:
    page = visit(tabs, web, run, "?seq=9", viewport={"width": width, "height": 800})

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # The newest row is at the bottom of the view.
    page.locator(".replay-rows").scroll_into_view_if_needed()
    expect(page.locator(".replay-rows .row").last).to_be_in_viewport()


def test_the_player_works_without_scripts(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    page = visit(tabs, web, run, javascript=False)
    expect(page.locator("#replay-play")).to_be_hidden()
    page.get_by_role("link", name="Last").click()
    expect(page.locator(".replay-moment")).to_have_attribute("data-seq", str(last_seq(run)))
    page.locator("#replay-seq").fill("5")
    page.get_by_role("button", name="Go").click()
    expect(page.locator(".replay-moment")).to_have_attribute("data-seq", "5")
    assert page.url.endswith("/replay?seq=5")
