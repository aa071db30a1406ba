"""Resolve an unknown outcome in a browser: without scripts, on a narrow screen, and seen on other pages."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.actions.unknown_calls import OutcomeChoice, resolve
from runs.models import AgentRun, AgentRunToolCall
from tests.support.browser import Tabs, assert_each_once, live, open_run, status
from tests.support.factories import drive, make_person, make_waiting
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
NARROW = {"width": 400, "height": 800}


@pytest.fixture
def run(web: WebThread) -> AgentRun:
    return make_waiting()


def lost_call(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.get(run=run, status="unknown")


def call_resolver(call: AgentRunToolCall) -> str:
    call.refresh_from_db()
    assert call.resolved_at is not None
    return str(call.resolved_by)


def assert_fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.smoke
def test_an_outcome_is_resolved_without_scripts(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    call = lost_call(run)
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), javascript=False)
    open_run(page, run)
    page.locator(f"#call-{call.pk}").get_by_role("link", name="Resolve outcome").click()
    place = page.locator(f"#outcome-{call.pk}")
    expect(place).to_be_in_viewport()
    place.get_by_text("Mark as done…").click()
    place.get_by_label("Output").fill("Three rows.")
    place.get_by_role("button", name="Mark as done", exact=True).click()

    expect(page.get_by_text("Outcome recorded. The run continues.")).to_be_visible()
    expect(page.locator(f"#call-{call.pk}")).to_contain_text("completed")
    expect(page.locator(f"#call-{call.pk}")).to_contain_text(f"Marked as done by {call_resolver(call)}, not observed")
    call.refresh_from_db()
    assert (call.status, call.output) == ("completed", "Three rows.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_running_again_shows_a_warning_on_a_narrow_screen(
    tabs: Tabs, web: WebThread, run: AgentRun, scheme: str
) -> None:
    call = lost_call(run)
    page = tabs.open(
        web.url,
        make_person(run.project, Role.OPERATOR),
        viewport=NARROW,
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    open_run(page, run)
    place = page.locator(f"#outcome-{call.pk}")
    for each in ("Mark as done…", "Mark as failed…", "Run again…"):
        place.get_by_text(each).click()
        assert_fits(page)
    expect(place.get_by_text("running it again repeats its effect")).to_be_visible()
    place.get_by_role("button", name="Run again anyway").click()

    expect(page.get_by_text("Outcome recorded. The tool call runs again.")).to_be_visible()
    assert AgentRun.objects.get(pk=run.pk).status == "queued"


def test_other_readers_see_the_outcome_at_once(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    """Check the card and the banner on a viewer's open page."""
    call = lost_call(run)
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    open_run(page, run)
    live(page)
    expect(page.locator(f"#outcome-{call.pk}")).to_contain_text("Requires the role operator")

    resolve(run.pk, call.pk, OutcomeChoice.RETRY, by="oscar")
    expect(page.locator(f"#call-{call.pk}")).to_contain_text("planned")
    status(page, "queued")
    expect(page.locator(f"#outcome-{call.pk}")).to_have_count(0)
    assert drive(run).status == "completed"
    expect(page.locator(f"#call-{call.pk}")).to_contain_text("completed")
    assert_each_once(page)
