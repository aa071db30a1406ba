"""Test that rows removed from a live page shift no content on the screen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from tests.support.browser import Tabs, live, open_run, seqs
from tests.support.factories import make_person, make_run
from tests.support.timelines import grow
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]

#: Rows that a page keeps while it follows the run: half of MOST_ROWS in static/js/edges.js.
KEPT = 300
#: Longer than the period in which the digest counts rows, so that each burst is displayed row by row.
CALM_MS = 2500
#: Limit for a frame in which rows are only removed; several times as much if rows are also added.
LARGEST_SHIFT = 0.1

WATCH_SHIFTS = """() => {
  window.shifts = [];
  new PerformanceObserver((list) => shifts.push(...list.getEntries().map((entry) => entry.value)))
    .observe({ type: "layout-shift" });
}"""
#: Simulates a browser without scroll anchoring.
NO_ANCHORS = "() => { document.documentElement.style.overflowAnchor = 'none'; }"


def test_removed_rows_above_shift_no_content(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    grow(run, 120)
    size = {"width": 1280, "height": 900}
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER), viewport=size)
    open_run(page, run)
    live(page)
    page.evaluate(NO_ANCHORS)
    shown(page, grow(run, KEPT - len(seqs(page))))
    assert len(seqs(page)) == KEPT
    first = seqs(page)[0]
    page.wait_for_timeout(CALM_MS)

    page.evaluate(WATCH_SHIFTS)
    shown(page, grow(run, 25))
    expect(page.locator(f"#e{first}")).to_have_count(0)
    page.wait_for_timeout(300)  # layout-shift entries come some frames later

    assert max(page.evaluate("shifts"), default=0) < LARGEST_SHIFT
    assert len(seqs(page)) < KEPT


def shown(page: Page, seq: int) -> None:
    expect(page.locator(f"#e{seq}")).to_be_in_viewport()
