"""Test the replay of a flow run in a browser: the player of runs, with the graph at each event."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.models import FlowRun
from tests.support.browser import Tabs, obstacles
from tests.support.factories import make_person, make_project
from tests.support.flows import make_failed_flow_run
from tests.support.timelines import last_seq
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def flow_run(web: WebThread) -> FlowRun:
    return make_failed_flow_run(make_project("alpha"))


def visit(tabs: Tabs, web: WebThread, flow_run: FlowRun, query: str = "", **options: object) -> Page:
    page = tabs.open(web.url, make_person(flow_run.project, Role.VIEWER), **options)
    page.goto(f"/flow-runs/{flow_run.pk}/replay{query}")
    return page


def at(page: Page, seq: int) -> None:
    expect(page.locator(".replay-moment")).to_have_attribute("data-seq", str(seq))
    expect(page.locator("#replay-scrub")).to_have_value(str(seq))


def test_the_player_plays_steps_and_scrubs(tabs: Tabs, web: WebThread, flow_run: FlowRun) -> None:
    page, last = visit(tabs, web, flow_run), last_seq(flow_run)
    at(page, 1)
    expect(page.get_by_role("link", name="Constant a, pending")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    page.locator("#replay-speed").select_option("32")
    page.get_by_role("button", name="Play").click()
    at(page, last)
    expect(page.locator(".replay-state .status")).to_have_text("failed")
    expect(page.get_by_role("link", name="Constant a, done, iteration 3")).to_be_visible()
    frame = re.compile(rf"GET {re.escape(web.url)}/flow-runs/{flow_run.pk}/replay/frame\?seq=\d+")
    assert asked
    assert all(frame.fullmatch(each) or "/static/" in each for each in asked), asked

    page.keyboard.press("Home")
    at(page, 1)
    page.keyboard.press("ArrowRight")
    at(page, 2)
    page.locator("#replay-scrub").fill("7")
    at(page, 7)
    page.get_by_role("link", name="Previous").click()
    at(page, 6)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320)])
def test_the_replay_page_is_accessible(tabs: Tabs, web: WebThread, flow_run: FlowRun, scheme: str, width: int) -> None:
    page = visit(tabs, web, flow_run, "?seq=9", color_scheme=scheme, viewport={"width": width, "height": 800})
    at(page, 9)
    assert obstacles(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_replay_works_without_scripts(tabs: Tabs, web: WebThread, flow_run: FlowRun) -> None:
    page = visit(tabs, web, flow_run, javascript=False)
    expect(page.locator("#replay-play")).to_be_hidden()
    page.get_by_role("link", name="Last").click()
    expect(page.locator(".replay-moment")).to_have_attribute("data-seq", str(last_seq(flow_run)))
    page.locator("#replay-seq").fill("5")
    page.get_by_role("button", name="Go").click()
    expect(page.locator(".replay-moment")).to_have_attribute("data-seq", "5")
