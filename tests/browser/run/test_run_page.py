"""Test the page of a run in a browser: rows arrive live, and a reload shows the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections
from playwright.sync_api import Page, Route, expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import (
    CLIPBOARD,
    GONE,
    Tabs,
    assert_each_once,
    copy,
    live,
    open_run,
    row_ids,
    seqs,
    status,
    texts,
    until,
)
from tests.support.engine import driven, make_scripted
from tests.support.factories import drive, make_person, make_run
from tests.support.timelines import finish, grow, last_seq
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]

#: Records each text of the growing card, because a busy machine may check only when it is finished.
RECORD_STREAMED_TEXT = """() => {
  window.grown = [];
  new MutationObserver(() => {
    const text = document.querySelector(".card-assistant.is-streaming .text")?.innerText;
    if (text && text !== grown.at(-1)) grown.push(text);
  }).observe(document.getElementById("timeline"), { childList: true, characterData: true, subtree: true });
}"""


def visit(tabs: Tabs, web: WebThread, run: AgentRun, query: str = "", **options: object) -> Page:
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), **options)
    open_run(page, run, query)
    return page


def grow_and_leave(run: AgentRun) -> None:
    grow(run, 3)
    connections.close_all()


def same_after_reload(page: Page) -> None:
    before, seen = row_ids(page), texts(page)
    page.reload()
    assert row_ids(page) == before
    assert texts(page) == seen


@pytest.mark.smoke
def test_a_run_is_displayed_live(tabs: Tabs, web: WebThread) -> None:
    run = make_scripted(chunks=4, pause_s=0.1, tool_sleep_s=1.5)  # long enough for the browser to check
    page = visit(tabs, web, run)
    live(page)
    status(page, "queued")
    with driven(run):
        status(page, "running")
        expect(page.locator(".card-assistant").first).to_contain_text("Step 1.")
        expect(page.locator(".card-tool.is-running")).to_have_count(1)
        expect(page.locator(".card-tool.is-completed")).to_have_count(3)
    status(page, "completed")
    expect(page.locator("#connection")).to_have_text("Ended")

    expect(page.locator(".is-streaming, .card-tool.is-running")).to_have_count(0)
    expect(page.locator("#timeline .step")).to_have_count(3)
    assert_each_once(page)
    same_after_reload(page)


def test_streamed_text_grows_and_the_finished_card_replaces_it(tabs: Tabs, web: WebThread) -> None:
    run = make_scripted(calls=[], chunks=12, pause_s=0.2)
    page = visit(tabs, web, run)
    live(page)
    page.evaluate(RECORD_STREAMED_TEXT)
    with driven(run):
        status(page, "completed")
    grown = page.evaluate("grown")
    assert "All done." in grown[0]
    assert len(grown) >= 3, "it did not grow piece by piece"
    assert [len(text) for text in grown] == sorted({len(text) for text in grown})
    card = page.locator(".card-assistant")
    expect(card).to_have_count(1)
    expect(card).to_contain_text("11: The model thinks aloud")
    same_after_reload(page)


def test_no_event_is_lost_between_the_page_load_and_the_stream(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    person = make_person(run.project, Role.VIEWER)
    page = tabs.open(web.url, person)

    def late(route: Route) -> None:
        # In a thread: Playwright's callbacks have separate database connections, which would stay open.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(grow_and_leave, run).result()
        route.continue_()

    page.route("**/stream?*", late)
    open_run(page, run)
    live(page)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_visible()
    page.unroute("**/stream?*")

    assert_each_once(page)
    same_after_reload(page)


def test_a_run_received_in_one_message_appears_once(tabs: Tabs, web: WebThread) -> None:
    """Cards are opened, filled and completed within one message."""
    run = make_scripted()
    page = visit(tabs, web, run)
    live(page)
    page.context.set_offline(True)
    tabs.expect(GONE)
    drive(run)
    page.context.set_offline(False)
    status(page, "completed")

    assert_each_once(page)
    same_after_reload(page)


@pytest.mark.parametrize("show", ["messages", "tools", "errors"])
def test_filters_hide_rows_live_and_at_first(tabs: Tabs, web: WebThread, show: str) -> None:
    run = make_scripted()
    page = visit(tabs, web, run, f"?show={show}")
    live(page)
    with driven(run):
        pass
    status(page, "completed")
    visible = page.locator("#timeline > li:visible")
    seen_live = visible.evaluate_all("rows => rows.map(row => `${row.id} ${row.className}`)")
    page.reload()

    assert visible.evaluate_all("rows => rows.map(row => `${row.id} ${row.className}`)") == seen_live
    assert bool(seen_live) is (show != "errors")


def test_following_stops_when_the_reader_scrolls_up(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    grow(run, 60)
    page = visit(tabs, web, run)
    live(page)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_in_viewport()
    grow(run, 5)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_in_viewport()
    # Scrolled away from the end, the page must not move.
    end = page.evaluate("scrollY")
    page.mouse.move(400, 300)
    page.mouse.wheel(0, -1500)
    until(page, lambda: page.evaluate("scrollY") == end - 1500, why="the page has scrolled")
    before = page.evaluate("scrollY")
    grow(run, 7)
    pill = page.locator("#new-events")
    expect(pill).to_have_text("↓ 7 new")
    assert page.evaluate("scrollY") == before

    pill.click()
    expect(page.locator(f"#e{last_seq(run)}")).to_be_in_viewport()
    expect(pill).to_be_hidden()
    grow(run)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_in_viewport()


def test_a_link_opens_at_an_event(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    grow(run, 500)
    finish(run)
    page = visit(tabs, web, run, "?event=123#target")

    expect(page.locator("#e123")).to_be_in_viewport()
    expect(page.locator("#e123.is-target")).to_have_count(1)
    assert 123 in seqs(page)


def test_the_id_is_copied_and_times_toggle_to_utc(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = visit(tabs, web, run, timezone_id="Asia/Tokyo", **CLIPBOARD)
    assert copy(page.locator("#head .run-facts button.copy").first) == str(run.pk)
    time = page.locator("#timeline time").first
    local = time.inner_text()
    page.keyboard.press("t")
    expect(time).not_to_have_text(local)
    utc = time.inner_text()

    assert (int(utc[:2]) + 9) % 24 == int(local[:2])


def test_a_viewer_has_no_actions(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    open_run(page, run)

    expect(page.locator("#head form")).to_have_count(0)
    page.get_by_text("More", exact=True).click()
    for name in ("Resume", "Pause", "Send message", "Stop", "Fork"):
        expect(page.locator(".refused li", has_text=name)).to_contain_text("Requires the role operator or admin.")
