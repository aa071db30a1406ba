"""Test a page that loses its server: it reconnects and continues where it was, without repeated rows."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import remove_member
from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support import scripted_model
from tests.support.browser import GONE, Tabs, assert_each_once, live, open_run, row_ids, seqs, status
from tests.support.factories import make_person, make_run
from tests.support.stage import Stage
from tests.support.suite_fixtures import MakeWeb
from tests.support.timelines import finish, grow, last_seq
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
assert scripted_model.ScriptedProvider is not None


class Busy(BaseHTTPRequestHandler):
    """A server that answers like a proxy without a backend."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(503)
        self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@contextmanager
def busy(port: int) -> Iterator[list[str]]:
    """Answer every request at the port with 503, and yield the requested paths."""
    Busy.asked = []
    with ThreadingHTTPServer(("127.0.0.1", port), Busy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Busy.asked
        finally:
            server.shutdown()
            thread.join()


def opened(tabs: Tabs, url: str, run: AgentRun) -> Page:
    page = tabs.open(url, make_person(run.project, Role.VIEWER))
    open_run(page, run)
    live(page)
    # A reload removes this mark.
    page.evaluate("document.body.dataset.same = 'yes'")
    return page


def assert_complete(page: Page, run: AgentRun) -> None:
    """Check that every event has one row, on the page that was opened at the beginning."""
    last = last_seq(run)
    expect(page.locator(f"#e{last}")).to_have_count(1)
    assert_each_once(page)
    assert seqs(page)[-1] == last
    own = [each for each in row_ids(page) if each.startswith("e")]
    page.wait_for_timeout(300)
    assert page.evaluate("document.body.dataset.same") == "yes", "the page was loaded anew"
    page.reload()
    assert [each for each in row_ids(page) if each.startswith("e")] == own


@pytest.mark.smoke
def test_no_row_is_repeated_after_a_restart(tabs: Tabs, web: WebThread) -> None:
    tabs.expect(GONE)
    run = make_run()
    page = opened(tabs, web.url, run)
    grow(run, 3)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_visible()
    for _ in range(2):
        web.stop()
        expect(page.locator("#connection")).to_contain_text("Reconnecting")
        grow(run, 4)
        web.start()
        live(page)
        expect(page.locator(f"#e{last_seq(run)}")).to_be_visible()
        grow(run, 2)
    assert_complete(page, run)


def test_no_row_is_repeated_after_a_503(tabs: Tabs, web: WebThread) -> None:
    tabs.expect(GONE)
    run = make_run()
    page = opened(tabs, web.url, run)
    grow(run, 5)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_visible()
    shown = last_seq(run)
    web.stop()
    with busy(web.port) as asked:
        grow(run, 2)
        expect(page.locator("#connection")).to_contain_text("Reconnecting")
        until = time.monotonic() + 10
        while len(asked) < 3 and time.monotonic() < until:
            page.wait_for_timeout(100)
    web.start()
    live(page)

    assert len(asked) >= 3, "it gave up"
    assert all(f"afterSeq={shown}" in path for path in asked), asked
    grow(run, 2)
    assert_complete(page, run)


def test_no_row_is_lost_while_the_server_hangs(tabs: Tabs, web: WebThread) -> None:
    """Listen without answering, like a frozen process; then start the server again."""
    tabs.expect(GONE)
    run = make_run()
    page = opened(tabs, web.url, run)
    web.stop()
    with socket.create_server(("127.0.0.1", web.port)):
        grow(run, 2)
        page.wait_for_timeout(2000)
    web.start()
    live(page)
    grow(run, 2)
    assert_complete(page, run)


def test_a_page_that_was_offline_catches_up(tabs: Tabs, web: WebThread) -> None:
    tabs.expect(GONE)
    run = make_run()
    page = opened(tabs, web.url, run)
    page.context.set_offline(True)
    expect(page.locator("#connection")).to_contain_text("Offline")
    grow(run, 5)
    page.context.set_offline(False)
    live(page)
    assert_complete(page, run)


def test_an_end_during_a_disconnect_is_displayed(tabs: Tabs, web: WebThread) -> None:
    tabs.expect(GONE)
    run = make_run()
    page = opened(tabs, web.url, run)
    web.stop()
    finish(run)
    web.start()
    status(page, "stopped")

    expect(page.locator("#connection")).to_have_text("Ended")
    assert_complete(page, run)


def test_a_page_far_behind_reloads(tabs: Tabs, web: WebThread) -> None:
    """Instead of streaming thousands of rows, the page reloads at its end."""
    tabs.expect(GONE)
    run = make_run()
    page = opened(tabs, web.url, run)
    web.stop()
    for _ in range(3):
        grow(run, 700)
    web.start()
    expect(page.locator(f"#e{last_seq(run)}")).to_be_visible(timeout=25_000)

    assert page.evaluate("document.body.dataset.same") is None
    assert_each_once(page)
    live(page)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_in_viewport()
    grow(run)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_in_viewport()


def test_a_reader_who_loses_access_sees_the_reason(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    person = make_person(run.project, Role.VIEWER)
    page = tabs.open(web.url, person)
    open_run(page, run)
    live(page)
    remove_member(run.project, person, actor=SYSTEM)
    expect(page.locator("#connection")).to_contain_text("Access revoked")
    grow(run)
    page.wait_for_timeout(1000)

    expect(page.locator(f"#e{last_seq(run)}")).to_have_count(0)


def test_a_page_survives_kills_of_its_web_process(tabs: Tabs, stage: Stage, web_process: MakeWeb) -> None:
    """Kill the web process twice with SIGKILL while a separate worker drives the run."""
    tabs.expect(GONE)
    server = web_process()
    run = stage.run([["ledger_read"]] * 6, chunks=3, pause_s=0.2, tool_sleep_s=0.8)
    page = opened(tabs, server.url, run)
    stage.worker()
    for card in (0, 2):
        expect(page.locator(".card-tool.is-completed").nth(card)).to_be_visible(timeout=20_000)
        server.kill()
        page.wait_for_timeout(500)
        server.start()
    status(page, "completed", timeout=30_000)

    expect(page.locator(".card-tool.is-completed")).to_have_count(6)
    assert_complete(page, run)


@pytest.mark.parametrize("is_in_background", [False, True], ids=["hidden later", "opened in the background"])
def test_a_hidden_page_closes_its_stream(tabs: Tabs, web: WebThread, *, is_in_background: bool) -> None:
    """Over HTTP/1.1 a browser has six connections to a site, so hidden tabs must not hold one."""
    run = make_run()
    page = tabs.open(web.url, make_person(run.project))
    page.clock.install()
    hide = """hidden => Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true})"""
    turn = f"""hidden => {{ ({hide})(hidden); document.dispatchEvent(new Event("visibilitychange")); }}"""
    if is_in_background:
        page.add_init_script(f"({hide})(true)")
    open_run(page, run)
    live(page)
    before = last_seq(run)

    if not is_in_background:
        page.evaluate(turn, True)
    page.clock.fast_forward(61_000)
    last = grow(run, 3)
    page.wait_for_timeout(700)
    assert max(seqs(page)) == before
    page.evaluate(turn, False)

    expect(page.locator(f"#timeline [data-seq='{last}']")).to_be_attached()
    assert_each_once(page)
