"""Test `agentops up` as a new user sees it: the process is killed and restarted, and runs and pages continue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import GONE, Tabs, assert_each_once, live, row_ids, status, texts
from tests.support.command_line import Site

pytestmark = [pytest.mark.browser, pytest.mark.slow]
#: 24 steps, about seven seconds at this pace.
PACED = {
    "agent_id": "paced",
    "provider": "fixture",
    "model": "claude-code-7e",
    "tools": ["recorded"],
    "max_steps": 500,
    "settings": {"pace": 30},
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "home")
    yield site
    site.kill()


def sign_in(page: Page, password: str | None) -> None:
    page.goto("/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(password or "")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Runs", exact=True).click()
    # Runs other than those in the demo flow, whose number grows.
    expect(page.locator("tr.run", has_text=re.compile("demo-replay|claude-code-"))).to_have_count(4)


def mark(page: Page) -> None:
    """Mark the page; a reload removes the mark."""
    page.evaluate("document.body.dataset.same = 'yes'")


def kill_and_restart(site: Site, *pages: Page) -> None:
    site.kill()
    for page in pages:
        expect(page.locator("#connection")).to_contain_text("Reconnecting")
    site.up()
    for page in pages:
        expect(page.locator("#connection")).to_have_text(re.compile("Live|Ended"), timeout=20_000)


def test_runs_and_pages_survive_kills(site: Site, tabs: Tabs, tmp_path: Path) -> None:
    tabs.expect(GONE)
    site.up()
    (tmp_path / "paced.json").write_text(json.dumps(PACED))
    site.agentops("agent", "apply", str(tmp_path / "paced.json"), "--project", "demo")
    page = tabs.open(f"http://127.0.0.1:{site.port}")
    sign_in(page, site.password)
    demo = page.context.new_page()
    demo.goto("/")
    demo.get_by_role("link", name="Runs", exact=True).click()
    demo.locator("tr.run", has_text="Demo replay").locator("td.title a").click()
    live(demo)
    mark(demo)
    seen = demo.locator("#timeline .step").count()

    page.get_by_role("link", name="Start run").first.click()
    page.get_by_text("paced", exact=True).click()
    page.get_by_role("button", name="Start run", exact=True).click()
    live(page)
    mark(page)
    expect(page.locator("#timeline .step").nth(2)).to_be_attached(timeout=20_000)
    kill_and_restart(site, page, demo)
    status(page, "completed", timeout=40_000)
    expect(page.locator("#connection")).to_have_text("Ended")
    # The demo run has made further steps and is still running.
    assert demo.locator("#timeline .step").count() > seen
    live(demo)

    for each in (page, demo):
        assert each.evaluate("document.body.dataset.same") == "yes", "the page was loaded anew"
        assert_each_once(each)
    shown, said = row_ids(page), texts(page)
    page.reload()
    newest = row_ids(page)
    assert shown[-len(newest) :] == newest[-len(shown) :]
    assert said[-len(newest) :] == texts(page)[-len(said) :]
    assert "All invariants hold" in site.agentops("check_invariants")
