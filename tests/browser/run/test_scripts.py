"""Test the scripts of a run's page besides rows: they keep the reader's state, limit the page and report failures."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import transaction
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import HeldRequest, Tabs, assert_each_once, live, open_run, seqs, until
from tests.support.factories import make_person, make_run
from tests.support.timelines import grow, last_seq
from tests.support.web_server import WebThread
from timeline import log
from timeline.log import Entry
from timeline.models import Source

pytestmark = [pytest.mark.browser]
MOST_ROWS = 600


def visit(tabs: Tabs, web: WebThread, run: AgentRun, query: str = "") -> Page:
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run, query)
    live(page)
    return page


def say(run: AgentRun, type_: str, **payload: Any) -> None:
    with transaction.atomic():
        log.append(run.pk, [Entry(payload, type=type_, step=1)], source=Source.INGEST)


@pytest.mark.breaks_invariants("events without rows are planted")
def test_opened_details_and_selected_text_are_kept(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = visit(tabs, web, run)
    say(run, "tool.start", call_id="c1", tool_name="search", arguments={"query": "where the lease is renewed"})
    card = page.locator(".card-tool")
    card.locator("details.arguments summary").click()
    card.locator(".payload").first.evaluate(
        """box => {
          const text = box.querySelector(".hl-s").firstChild, at = text.data.indexOf("the lease");
          getSelection().setBaseAndExtent(text, at, text, at + "the lease".length);
        }"""
    )
    say(run, "tool.end", call_id="c1", tool_name="search", status="completed", output="in lease.py")

    expect(card.locator(".status")).to_have_text("completed")
    expect(card.locator("details.arguments")).to_have_attribute("open", "")
    expect(card.locator("details.call")).to_have_attribute("open", "")
    assert page.evaluate("document.activeElement.closest('details').className") == "arguments"
    assert page.evaluate("getSelection().toString()") == "the lease"


def test_a_page_stays_small_and_reloads_removed_rows(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    grow(run, 450)
    page = visit(tabs, web, run)
    last = grow(run, 220)
    expect(page.locator(f"#e{last}")).to_be_in_viewport()
    until(page, lambda: len(seqs(page)) <= MOST_ROWS // 2, why="half of them while the newest are followed")

    first = seqs(page)[0]
    page.locator("#older").scroll_into_view_if_needed()
    expect(page.locator(f"#e{first - 1}")).to_be_attached()
    assert_each_once(page)
    assert seqs(page) == [*range(seqs(page)[0], seqs(page)[-1] + 1)]

    # Reading back removes rows at the end; they can be loaded again, with details opened as before.
    while not page.locator("#newer").count():
        first = seqs(page)[0]
        page.locator("#older").scroll_into_view_if_needed()
        expect(page.locator(f"#e{first - 1}")).to_be_attached()
    assert len(seqs(page)) <= MOST_ROWS
    grow(run, 3)
    page.locator("#newer").scroll_into_view_if_needed()
    until(page, lambda: seqs(page)[-1] == last + 3, why="the newest rows are there again")
    assert len(seqs(page)) <= MOST_ROWS
    assert seqs(page) == [*range(seqs(page)[0], last + 4)]
    last = grow(run)
    expect(page.locator(f"#e{last}")).to_be_attached()


def test_rows_hidden_by_a_filter_are_not_kept(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = visit(tabs, web, run, "?show=errors")
    say(run, "error", error_type="network_error", error="the first")
    for _ in range(8):
        grow(run, 90)
    say(run, "error", error_type="network_error", error="the second")

    expect(page.locator("#timeline > .row")).to_have_count(2)
    expect(page.locator("#timeline")).to_contain_text("the first")


def test_a_row_that_cannot_be_placed_reloads_the_page(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = visit(tabs, web, run)
    tabs.expect("planted")
    page.evaluate(
        "document.body.dataset.same = 'yes'; timelineEdges.prepare = () => { throw new Error('planted'); }; null"
    )
    last = grow(run)

    # A page reloads at the earliest ten seconds after it was loaded.
    expect(page.locator("body[data-same]")).to_have_count(0, timeout=15_000)
    expect(page.locator(f"#e{last}")).to_be_in_viewport()


def test_a_failed_request_is_reported_until_one_succeeds(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    grow(run, 300)
    page = visit(tabs, web, run)
    tabs.expect("answered 500|status of 500|Response Status Error Code 500")
    page.route("**/rows?*", lambda route: route.fulfill(status=500, headers={"X-Request-ID": "r-1"}, body=""))
    page.locator("#older").scroll_into_view_if_needed()
    alert = page.get_by_role("alert")

    expect(alert).to_contain_text("The request failed with HTTP status 500. Try again later. Request ID: r-1.")
    page.unroute("**/rows?*")
    first = min(seqs(page))
    page.locator("#older a").click()
    expect(page.locator("#timeline > [data-seq]").first).not_to_have_attribute("data-seq", str(first))
    expect(alert).to_have_count(0)


def test_the_back_link_keeps_the_filters(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    address = f"/p/{run.project.slug}/runs?status=queued"
    page.goto(address)
    page.locator(".row-link").click()
    page.get_by_role("link", name="← Runs").click()

    assert page.url.endswith(address)


def test_a_hidden_page_closes_its_stream(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    page.clock.install()
    open_run(page, run)
    live(page)
    page.evaluate(
        """() => {
          Object.defineProperty(document, "hidden", { get: () => window.away, configurable: true });
          window.turn = (away) => { window.away = away; document.dispatchEvent(new Event("visibilitychange")); };
          turn(true);
        }"""
    )
    page.clock.fast_forward(61_000)
    last = grow(run)
    page.wait_for_timeout(300)
    assert seqs(page)[-1] < last
    page.evaluate("turn(false)")

    expect(page.locator(f"#e{last}")).to_be_attached()


def test_the_stream_opens_once_and_delivers_events_from_before_the_scripts_loaded(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    # Without this library, no row can be placed.
    library = HeldRequest(page, "**/vendor/htmx-2.0.11.min.js*")
    page.goto(f"/runs/{run.pk}", wait_until="commit")
    library.wait()
    until(page, lambda: [url for url in asked if "/stream" in url], why="the stream is asked for")
    page.wait_for_timeout(300)
    grow(run, 5)
    page.wait_for_timeout(300)
    library.release()
    live(page)

    expect(page.locator("#timeline")).to_have_attribute("data-last", re.compile(rf"^{last_seq(run)}([.]0)?$"))
    assert_each_once(page)
    assert len([url for url in asked if "/stream" in url]) == 1


@pytest.mark.breaks_invariants("events without rows are planted")
def test_pending_row_changes_are_applied_before_the_newest_rows_load(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    say(run, "tool.start", call_id="c1", tool_name="search")
    start = last_seq(run)
    grow(run, 300)  # more than the page shows, but few enough to be loaded in one request
    page = visit(tabs, web, run, f"?event={start}")
    card = page.locator(".card-tool")
    expect(page.locator("#newer")).to_have_count(1)
    expect(card.locator(".status")).to_have_text("running")
    page.evaluate("window.frames = []; window.requestAnimationFrame = (frame) => window.frames.push(frame); null")
    say(run, "tool.end", call_id="c1", tool_name="search", status="completed", output="found")
    end = last_seq(run)
    expect(page.locator("#timeline")).to_have_attribute("data-last", re.compile(rf"^{end}([.]0)?$"))
    expect(card.locator(".status")).to_have_text("running")
    page.evaluate("timelineEdges.loadNewer()")
    expect(page.locator("#newer")).to_have_count(0)

    expect(card.locator(".status")).to_have_text("completed")
    page.evaluate("for (const frame of window.frames) frame()")
    assert_each_once(page)
