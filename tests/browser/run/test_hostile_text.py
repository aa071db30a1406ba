"""Test that foreign text stays text everywhere on a run's page: on load, live, and when it is opened."""

from __future__ import annotations

import pytest
from django.db import transaction
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import Tabs, assert_each_once, live, open_run, status
from tests.support.engine import driven, make_scripted
from tests.support.factories import make_agent, make_person, make_run
from tests.support.pages import FOREIGN, HOSTILE, WHOLE
from tests.support.scripted_model import PLAYS
from tests.support.timelines import last_seq
from tests.support.web_server import WebThread
from timeline import log
from timeline.log import Entry
from timeline.models import Source

pytestmark = [pytest.mark.browser]


def say_everywhere(run: AgentRun) -> None:
    """Append events of every family with hostile texts."""
    entries = [Entry({"name": text, "value": text}, type="x.hostile") for text in HOSTILE]
    entries += [
        Entry({"message": WHOLE, "error_type": "boom"}, type="error"),
        Entry({"role": "user", "content": WHOLE[:2000]}, type="message.added"),
        *(Entry({"text": text[:8000]}, type="llm.text") for text in (*HOSTILE, WHOLE)),
    ]
    for place, text in enumerate(HOSTILE):
        # An external runner chooses the IDs of its calls, which identify their cards.
        call = {"call_id": text[:60] or str(place), "tool_name": text[:100]}
        entries += [
            Entry(call | {"arguments": {text: text}}, type="tool.start", step=1),
            Entry({"call_id": call["call_id"], "text": text}, type="tool.output", step=1),
            Entry(call | {"output": text, "error": text}, type="tool.end", step=1),
        ]
    with transaction.atomic():
        log.append(run.pk, [*entries, Entry(type="x.last")], source=Source.INGEST)


def assert_inert(page: Page) -> None:
    page.wait_for_timeout(300)
    assert page.evaluate(FOREIGN) == []
    # The structure of the page is intact.
    assert page.locator("#head").count() == page.locator("#timeline").count() == 1
    assert page.locator("#e1").count() <= 1


@pytest.mark.breaks_invariants("events without rows are planted")
def test_hostile_events_are_text_live_and_at_first(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run)
    live(page)
    say_everywhere(run)
    expect(page.locator(f"#e{last_seq(run)}")).to_be_attached()
    assert_inert(page)
    assert_each_once(page)
    # Displayed, not dropped.
    for text in HOSTILE[:6]:
        expect(page.locator("#timeline")).to_contain_text(text[:40])
    page.reload()
    assert_inert(page)
    page.keyboard.press("e")
    assert_inert(page)
    # The fragment that replaces a card's text, and the full page of a payload.
    page.locator(".card-assistant .plain").first.click()
    expect(page.locator(".card-assistant .payload-parts")).to_be_visible()
    assert_inert(page)
    for seq in (last_seq(run) - 1, *range(len(HOSTILE) + 2, len(HOSTILE) + 6)):
        for form in ("", "?as=text"):
            page.goto(f"{web.url}/runs/{run.pk}/events/{seq}{form}")
            assert page.evaluate(FOREIGN) == []


def test_a_hostile_model_and_tools_are_text(tabs: Tabs, web: WebThread) -> None:
    run = make_scripted(calls=[["ledger_read"]], play="hostile", tool_sleep_s=0.2)
    PLAYS["hostile"] = lambda call: [WHOLE * 2, 0.3, "\n", WHOLE]
    try:
        page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
        open_run(page, run)
        live(page)
        with driven(run):
            expect(page.locator(".card-assistant .text")).to_contain_text("<script>")
            assert_inert(page)
        status(page, "completed")
    finally:
        del PLAYS["hostile"]

    assert_inert(page)
    page.reload()
    assert_inert(page)
    more = page.get_by_role("link", name="Show all")
    if more.count():
        more.first.click()
        expect(page.locator(".card-assistant")).to_contain_text("lines ]]> <![CDATA[")
        assert_inert(page)


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_hostile_names_and_prompts_are_text(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    agent = make_agent()
    agent.project.name = HOSTILE[0] + HOSTILE[1]
    agent.project.save()
    run = make_run(agent, WHOLE, title=HOSTILE[2] + HOSTILE[9], labels=["<b>label</b>"])
    page = tabs.open(web.url, make_person(agent.project, Role.OPERATOR), javascript=javascript)
    open_run(page, run)
    assert_inert(page)
    # The prompt is Markdown: on its card and on the Messages tab, formatted and as stored.
    expect(page.locator(".card-user .markdown")).to_contain_text("<svg onload=alert('svg')>")
    page.locator(".card-user .plain").click(force=True)
    expect(page.get_by_role("link", name="Formatted")).to_be_visible()
    assert page.evaluate(FOREIGN) == []
    for form in ("", "?as=text"):
        page.goto(f"/runs/{run.pk}/messages{form}")
        expect(page.locator(".said-user .text")).to_contain_text("<svg onload=alert('svg')>")
        assert page.evaluate(FOREIGN) == []
    page.goto(f"/p/{agent.project.slug}/runs")

    assert page.evaluate(FOREIGN) == []
    expect(page.locator("tr.run td.title")).to_contain_text("<svg onload=alert('svg')>")
    page.goto(f"/p/{agent.project.slug}/runs?q=%3Cscript%3Ealert(1)%3C/script%3E%22%20autofocus%20onfocus=alert(1)")
    assert page.evaluate(FOREIGN) == []


@pytest.mark.parametrize(
    "path", ["/runs/%3Cscript%3Ealert(1)%3C/script%3E", "/p/x/runs?status=%22%3E%3Cimg%20src=x%3E"]
)
def test_error_pages_contain_no_active_content(tabs: Tabs, web: WebThread, path: str) -> None:
    tabs.expect("404|400")
    page = tabs.open(web.url, make_person(make_agent().project))
    page.goto(path)

    assert page.evaluate(FOREIGN) == []
