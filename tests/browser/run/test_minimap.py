"""Test that the minimap follows a live run with few requests, shifts no content, and pauses on a hidden page."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.pages.timeline import minimap
from tests.support.browser import Tabs, live, open_run, status
from tests.support.engine import driven, make_scripted
from tests.support.factories import make_person
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
PAUSE_MS = 10_000
#: Script for the start of the timeline and the height of the minimap.
PLACES = "['timeline', 'minimap'].map(id => document.getElementById(id).getBoundingClientRect())"
TOP_AND_HEIGHT = f"(() => {{ const [rows, map] = {PLACES}; return [rows.top - map.top, map.height]; }})()"


def requests_of(page: Page) -> list[str]:
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if request.url.endswith("/minimap") else None)
    return found


def set_hidden(page: Page, *, hidden: bool) -> None:
    value = "true" if hidden else "false"
    page.evaluate(f"Object.defineProperty(document, 'hidden', {{ value: {value}, configurable: true }})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_the_minimap_of_a_long_run_loads_after_its_page(
    tabs: Tabs, web: WebThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minimap, "AT_ONCE", 3)
    run = make_scripted(calls=[["ledger_read"]])
    with driven(run):
        pass
    run.refresh_from_db()
    assert run.state.terminal
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    requests = requests_of(page)
    open_run(page, run)

    expect(page.locator("#minimap .map-step").first).to_be_attached()
    expect(page.locator("#last-step")).to_have_text(f"of {run.step_count}")
    assert page.locator("[hx-get$='/minimap']").count() == 0
    assert len(requests) == 1

    without = tabs.open(web.url, make_person(run.project, Role.VIEWER), javascript=False)
    open_run(without, run)
    expect(without.locator("#last-step")).to_have_text(f"of {run.step_count}")
    assert without.locator("#minimap a").count() == 0


@pytest.mark.parametrize("is_hidden", [False, True], ids=["in sight", "hidden"])
def test_the_minimap_follows_a_live_run(tabs: Tabs, web: WebThread, is_hidden: bool) -> None:
    run = make_scripted(calls=[["ledger_read"], ["ledger_read"], ["ledger_read"]])
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    page.clock.install()
    open_run(page, run)
    live(page)
    requests, place = requests_of(page), page.evaluate(TOP_AND_HEIGHT)
    expect(page.locator("#last-step")).to_have_text("of 1")
    page.get_by_label("Go to step").fill("2")
    with driven(run):
        status(page, "completed")
    run.refresh_from_db()
    assert run.step_count > 2
    # The minimap is not requested again within ten seconds of the load.
    assert requests == []

    if is_hidden:
        set_hidden(page, hidden=True)
        page.clock.fast_forward(2 * PAUSE_MS)
        page.wait_for_timeout(300)
        assert requests == []
        set_hidden(page, hidden=False)
    else:
        page.clock.fast_forward(PAUSE_MS)

    expect(page.locator("#last-step")).to_have_text(f"of {run.step_count}")
    assert page.locator("#minimap .map-step").count() >= run.step_count
    assert page.evaluate(TOP_AND_HEIGHT) == place
    expect(page.get_by_label("Go to step")).to_have_value("2")
    # The run has ended: no more requests, not even on a page opened now.
    page.clock.fast_forward(60 * PAUSE_MS)
    page.wait_for_timeout(300)
    assert len(requests) == 1
    open_run(page, run)
    expect(page.locator("#last-step")).to_have_text(f"of {run.step_count}")
    assert page.locator("[hx-get$='/minimap']").count() == 0
