"""Test pages by keyboard alone, on narrow screens, in dark mode, and without scripts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import Tabs, live, open_run, status
from tests.support.engine import driven, make_scripted
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.timelines import finish, grow, last_seq
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


def focused(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.id || document.activeElement.tagName")
    return found


def full_run() -> AgentRun:
    """Create a completed run with cards of all kinds and long words."""
    run = make_scripted(calls=[["ledger_read", "ledger_once"]])
    grow(run, 2, size=900)
    return drive(run)


# --- Keyboard ---------------------------------------------------------------------------------------------------


def test_the_timeline_by_keyboard(tabs: Tabs, web: WebThread) -> None:
    run = full_run()
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    page.evaluate("document.querySelector('#timeline > li').focus()")
    first = focused(page)
    page.keyboard.press("j")
    second = focused(page)
    page.keyboard.press("k")
    assert (focused(page), second != first) == (first, True)

    tool = page.locator(".card-tool").first
    tool.focus()
    details = tool.locator("details").first
    page.keyboard.press("Enter")
    expect(details).to_have_attribute("open", "")
    page.keyboard.press("Enter")
    expect(details).not_to_have_attribute("open", "")
    page.keyboard.press("e")
    expect(page.locator("#timeline details:not([open])")).to_have_count(0)
    page.keyboard.press("w")
    expect(page.locator("#timeline details[open]")).to_have_count(0)


def test_the_help_sheet_and_navigation_keys(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run)
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog")
    expect(sheet).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page).to_have_url(f"{web.url}/p/{run.project.slug}/runs")

    page.keyboard.press("/")
    assert focused(page) == "filter-q"
    page.keyboard.type("jk?f/")
    expect(page.locator("#filter-q")).to_have_value("jk?f/")
    expect(sheet).to_be_hidden()
    page.keyboard.press("Escape")
    page.locator("tr.run").first.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{web.url}/runs/{run.pk}")


def test_a_run_is_paused_by_keyboard(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run)
    pause = page.get_by_role("button", name="Pause", exact=True)
    for _ in range(40):
        page.keyboard.press("Tab")
        if pause.evaluate("button => button === document.activeElement"):
            break
    # Keyboard focus must be visible.
    assert pause.evaluate("button => getComputedStyle(button).outlineStyle") != "none"
    page.keyboard.press("Enter")
    status(page, "paused")


def test_every_control_has_a_name(tabs: Tabs, web: WebThread) -> None:
    run = full_run()
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    for path in (f"/runs/{run.pk}", f"/p/{run.project.slug}/runs", f"/p/{run.project.slug}/runs/new"):
        page.goto(path)
        page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("a, button, summary, input:not([type=hidden]), textarea, select")]
              .filter(node => !node.hidden && !node.ariaLabel && !node.title && !node.labels?.length)
              .filter(node => !node.textContent.trim())
              .map(node => node.outerHTML)"""
        )
        assert nameless == [], path
        assert page.locator("h1").count() == 1
        assert page.title()


# --- Screens ----------------------------------------------------------------------------------------------------


def test_no_page_scrolls_sideways(tabs: Tabs, web: WebThread) -> None:
    run = full_run()
    make_run(make_agent(run.project), "Long" * 200, labels=["a-label"])
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), viewport=NARROW)
    for path in (f"/runs/{run.pk}", f"/p/{run.project.slug}/runs", f"/p/{run.project.slug}/runs/new", "/nothing"):
        tabs.expect("404")
        page.goto(path)
        page.evaluate("document.querySelectorAll('#timeline details').forEach(details => details.open = true)")
        for size in (NARROW, {"width": 768, "height": 900}, WIDE):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, (path, size, widest(page))


def widest(page: Page) -> list[str]:
    """List the elements that overflow the page."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter(node => node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
          .map(node => `${node.tagName}.${node.className}`).slice(0, 8)"""
    )
    return found


def test_dark_mode_is_applied_and_the_choice_is_kept(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project), color_scheme="dark")
    open_run(page, run)
    shade = "getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    dark = page.evaluate(shade)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(shade)
    assert dark < light
    toggle = page.locator("[data-theme-toggle]")
    for _ in range(3):
        toggle.click()
        if abs(page.evaluate(shade) - dark) < abs(page.evaluate(shade) - light):
            break
    chosen = page.evaluate(shade)
    page.reload()

    assert page.evaluate(shade) == chosen < light


def test_a_live_run_shifts_no_content(tabs: Tabs, web: WebThread) -> None:
    """Measure cumulative layout shift for a reader at the beginning of the page."""
    run = make_scripted(calls=[["ledger_read"]] * 3, chunks=2, pause_s=0.05, tool_sleep_s=0.1)
    grow(run, 40)
    page = tabs.open(web.url, make_person(run.project))
    open_run(page, run)
    live(page)
    page.evaluate("scrollTo(0, 300)")
    page.wait_for_timeout(300)
    page.evaluate(
        """() => { window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach(entry => {
          window.shift += entry.value; })).observe({ type: "layout-shift" }); }"""
    )
    with driven(run):
        pass
    status(page, "completed")

    assert page.evaluate("shift") < 0.1


# --- Without scripts --------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_run_is_read_without_scripts(tabs: Tabs, web: WebThread) -> None:
    run = full_run()
    page = tabs.open(web.url, make_person(run.project), javascript=False)
    page.goto("/")
    expect(page).to_have_url(re.compile(f"/p/{run.project.slug}$"))
    page.get_by_role("link", name="Runs", exact=True).click()
    page.locator("tr.run td.title a").click()
    status(page, "completed")
    card = page.locator(".card-tool").first
    card.locator("summary").first.click()
    expect(card.locator("pre").first).to_be_visible()
    page.get_by_role("link", name="Tools", exact=True).click()
    expect(page).to_have_url(re.compile("show=tools"))
    expect(page.locator(".card-tool")).to_have_count(2)
    page.locator(".card-tool a.raw").first.click()
    expect(page.locator("body")).to_contain_text("tool.start")


def test_a_reload_shows_new_events_without_scripts(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project), javascript=False)
    open_run(page, run)
    finish(run)
    page.reload()

    expect(page.locator(f"#e{last_seq(run)}")).to_be_visible()
    # No control that requires a script is visible.
    expect(page.locator(".needs-js:visible, #new-events:visible")).to_have_count(0)


def test_rows_of_a_wide_table_are_not_taller_than_their_visible_cells(tabs: Tabs, web: WebThread) -> None:
    """Columns out of view keep their width: otherwise wrapped text there would leave blank space in the row."""
    agent = make_agent()
    drive(make_run(agent))
    page = tabs.open(web.url, make_person(agent.project, Role.ADMIN), viewport=NARROW)
    for path in ("agents", "settings/members"):
        page.goto(f"/p/{agent.project.slug}/{path}")
        box, row = page.locator(".table-wrap").first, page.locator(".table tbody tr").first
        assert box.evaluate("node => node.scrollWidth > node.clientWidth")
        assert row.evaluate("node => node.offsetHeight") < 56
