"""Test the copy buttons: the text of an element, a text from the server, and a browser without the clipboard API."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from agentops.accounts.models import Role
from runs.models import AgentRunToolCall
from tests.support.browser import CLIPBOARD, Tabs, copy, open_run
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]

#: Simulates a site without https, where scripts can only copy selected text.
NO_CLIPBOARD = "() => { Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true }); }"


def test_each_kind_of_text_is_copied_or_a_failure_reported(tabs: Tabs, web: WebThread) -> None:
    run = drive(make_run(make_agent()))
    call = AgentRunToolCall.objects.filter(run=run, status="completed").earliest("pk")
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER), **CLIPBOARD)
    page.goto(f"/runs/{run.pk}/calls/{call.pk}?as=text")
    button = page.locator("[data-copy-from]").first
    source = page.locator(f"[id='{button.get_attribute('data-copy-from')}']")
    assert copy(button) == source.text_content()

    open_run(page, run)
    card = page.locator(f"#call-{call.pk}")
    card.locator("summary").first.click()
    button = card.locator("details.output .copy")
    assert copy(button) == call.output

    tabs.expect("500")
    page.route("**/calls/*download=output", lambda route: route.fulfill(status=500, body="no"))
    button.click()
    expect(button).to_have_text("Copy failed")

    page.evaluate(NO_CLIPBOARD)
    page.locator("#head .run-facts .copy").first.click()
    expect(page.locator("#announce")).to_have_text("Copied")
    page.evaluate("delete navigator.clipboard")
    assert page.evaluate("navigator.clipboard.readText()") == str(run.pk)
    expect(page.locator("body > textarea")).to_have_count(0)
