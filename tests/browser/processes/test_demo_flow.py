"""Test the demo flow of a new site in a browser: the graph updates, the flow is paused and resumed, and replayed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Tabs
from tests.support.command_line import Site

pytestmark = [pytest.mark.browser, pytest.mark.slow]
#: Time limit in milliseconds for playing the two recordings at their pace.
PLAYED = 180_000
RESUMED = "SELECT COUNT(*) FROM agent_run_events e JOIN flow_runs f ON f.id = e.log_id WHERE e.type = 'flow.resumed'"
STEPS = "SELECT MAX(r.step_count) FROM agent_runs r JOIN runs_agent a ON a.id = r.agent_id WHERE a.slug = ?"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "home")
    yield site
    site.kill()


def to_the_flow(page: Page, password: str | None) -> None:
    page.goto("/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(password or "")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("navigation", name="Project").get_by_role("link", name="Flows").click()
    page.get_by_role("link", name=re.compile("Two changes|change-and-review")).first.click()
    page.locator("a[href^='/flow-runs/']").first.click()
    page.evaluate("document.body.dataset.same = 'yes'")


def test_the_demo_flow_is_watched_paused_resumed_and_replayed(site: Site, tabs: Tabs) -> None:
    site.up()
    page = tabs.open(site.url)
    to_the_flow(page, site.password)
    expect(page.get_by_role("link", name="Agent Carry out a plan, flow-plan, running")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("link", name="Agent Review the branch, flow-review, pending")).to_be_visible()
    assert page.evaluate("document.body.dataset.same") == "yes"

    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#head .status").first).to_have_text("paused", timeout=20_000)
    page.locator("#head summary", has_text="Resume").click()
    page.locator("#resume-message").fill("Go on, and be careful.")
    page.get_by_role("button", name="Resume flow run").click()
    expect(page.locator("#head .status").first).to_have_text("running", timeout=20_000)
    page.evaluate("document.body.dataset.same = 'yes'")

    # The page updates without a reload until the flow asks a person.
    question = page.get_by_role("link", name="Person Go on to the review?, running")
    expect(question.first).to_be_visible(timeout=PLAYED)
    expect(page.get_by_role("link", name="Agent Carry out a plan, flow-plan, done").first).to_be_visible()
    assert page.evaluate("document.body.dataset.same") == "yes", "the page was loaded anew"
    assert site.rows(RESUMED) == [(1,)]
    assert (site.rows(STEPS, "flow-change"), site.rows(STEPS, "flow-plan")) == ([(5,)], [(24,)])
    flow_run = page.url
    page.get_by_role("link", name="Open its run").click()
    page.get_by_role("button", name="leave it").first.click()
    page.goto(flow_run)
    expect(page.locator("#head .status").first).to_have_text("completed", timeout=30_000)
    expect(page.get_by_role("link", name="Agent Review the branch, flow-review, skipped").first).to_be_visible()

    page.get_by_role("link", name="Replay").click()
    expect(page.get_by_role("link", name="Agent Carry out a plan, flow-plan, pending")).to_be_visible()
    page.locator("#replay-speed").select_option("32")
    page.get_by_role("button", name="Play", exact=True).click()
    expect(page.locator(".replay-state .status")).to_have_text("completed", timeout=PLAYED)
    assert "0 differ" in site.agentops("check_runs")
    assert "All invariants hold" in site.agentops("check_invariants")
