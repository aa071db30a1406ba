"""Rows that leave a page which follows its run move nothing on the screen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from tests.support.accounts import make_person
from tests.support.browser.run_page import live, open_run, seqs
from tests.support.browser.tabs import Tabs
from tests.support.factories import make_run
from tests.support.live.growing_logs import grow
from tests.support.web.server import WebThread

pytestmark = [pytest.mark.browser]

#: Rows that a page keeps which follows: half of MOST_ROWS of static/js/edges.js.
KEPT = 300
#: Longer than the digest counts rows: each burst alone is shown row by row.
CALM_MS = 2500
#: Of a frame in which rows leave and nothing else happens; several times as much if rows come in it too.
LARGEST_SHIFT = 0.1

WATCH_SHIFTS = """() => {
  window.shifts = [];
  new PerformanceObserver((list) => shifts.push(...list.getEntries().map((entry) => entry.value)))
    .observe({ type: "layout-shift" });
}"""
#: As in a browser that does not hold the rows on the screen in place by itself.
NO_ANCHORS = "() => { document.documentElement.style.overflowAnchor = 'none'; }"


def test_rows_that_leave_above_move_nothing_on_the_screen(tabs: Tabs, web: WebThread) -> None:
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
    page.wait_for_timeout(300)  # entries come some frames later

    assert max(page.evaluate("shifts"), default=0) < LARGEST_SHIFT
    assert len(seqs(page)) < KEPT


def shown(page: Page, seq: int) -> None:
    expect(page.locator(f"#e{seq}")).to_be_in_viewport()
