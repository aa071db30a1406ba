"""Test the buttons of a run's page, with scripts and without."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from agentops.accounts.models import Role
from runs.lifecycle import transitions
from runs.models import AgentRun, RunCommand
from runs.statuses import RunStatus
from tests.support.browser import GONE, Tabs, assert_each_once, live, open_run, status
from tests.support.engine import driven, make_scripted
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.timelines import finish
from tests.support.web_server import WebThread
from timeline.events.run import RunPaused
from timeline.models import Source

pytestmark = [pytest.mark.browser]
both_ways = pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])


def visit(tabs: Tabs, web: WebThread, run: AgentRun, **options: object) -> Page:
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), **options)
    open_run(page, run)
    return page


def paused(run: AgentRun) -> AgentRun:
    transitions.move(run, RunStatus.PAUSED, RunPaused(reason="operator"), source=Source.WEB, reason="operator")
    return run


def menu(page: Page, name: str) -> None:
    page.locator("#head .actions summary", has_text=name).click()


def message_box(page: Page) -> Locator:
    """Return the message box of the open menu."""
    return page.get_by_role("textbox", name="Message").locator("visible=true")


@pytest.mark.smoke
def test_resume_opens_the_new_run_live(tabs: Tabs, web: WebThread) -> None:
    first = make_scripted(max_steps=1)
    drive(first)
    page = visit(tabs, web, first)
    status(page, "paused")
    menu(page, "Resume")
    expect(page.get_by_text("Creates a new run that continues at step 2")).to_be_visible()
    page.get_by_role("button", name="Resume as a new run").click()
    expect(page).not_to_have_url(re.compile(str(first.pk)))
    expect(page).to_have_url(re.compile(r"/runs/[0-9a-f-]{36}$"))
    second = AgentRun.objects.get(resumed_from=first)
    live(page)
    status(page, "queued")
    with driven(second):  # "running" may be over before the browser checks
        expect(page.locator(".card-tool.is-completed")).to_have_count(1)
    status(page, "paused")

    assert_each_once(page)
    first.refresh_from_db()
    assert first.status == RunStatus.RESUMED
    page.get_by_role("link", name="resumed from").click()
    status(page, "resumed")
    page.get_by_role("link", name="continued by").first.click()
    expect(page).to_have_url(f"{web.url}/runs/{second.pk}")


@both_ways
def test_resume_with_a_message(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    run = paused(make_run())
    page = visit(tabs, web, run, javascript=javascript)
    menu(page, "Resume")
    message_box(page).fill("Look at the <b>other</b> file & go on")
    page.get_by_label("Step budget").fill("7")
    page.get_by_role("button", name="Resume as a new run").click()
    expect(page).not_to_have_url(re.compile(str(run.pk)))

    child = AgentRun.objects.get(resumed_from=run)
    assert child.max_steps == 7
    expect(page.locator("#timeline")).to_contain_text("Look at the <b>other</b> file & go on")
    expect(page.locator("#messages")).to_contain_text("Run resumed.")


@both_ways
def test_pause_and_stop(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    run = make_run()
    page = visit(tabs, web, run, javascript=javascript)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#messages")).to_contain_text("Run paused.")
    status(page, "paused")
    menu(page, "Stop")
    expect(page.get_by_text("a stopped run cannot be resumed")).to_be_visible()
    page.get_by_role("button", name="Stop run").click()
    status(page, "stopped")

    menu(page, "More")
    expect(page.get_by_text("Only a paused run can be resumed. This run is stopped.")).to_be_visible()
    run.refresh_from_db()
    assert run.status == RunStatus.STOPPED


@both_ways
def test_a_message_is_sent_once(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    run = make_run()
    page = visit(tabs, web, run, javascript=javascript)
    menu(page, "Send message")
    message_box(page).fill("Also check the tests.")
    page.get_by_role("button", name="Send message", exact=True).click()
    expect(page.locator("#messages")).to_contain_text("Message sent")

    [command] = RunCommand.objects.filter(run=run)
    assert "Also check the tests." in str(command.payload)


@both_ways
def test_a_form_submitted_too_late_shows_the_reason(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    run = paused(make_run())
    tabs.expect(GONE)
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), javascript=javascript)
    # Without events, the page still offers an action after it has become impossible.
    page.route("**/stream*", lambda route: route.abort())
    open_run(page, run)
    menu(page, "Resume")
    finish(run)
    page.get_by_role("button", name="Resume as a new run").click()

    expect(page.locator(".banner-error")).to_contain_text(re.compile("only paused runs can be resumed", re.IGNORECASE))
    status(page, "stopped")


def test_an_action_shows_on_the_pages_of_other_readers(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    actor, watcher = visit(tabs, web, run), visit(tabs, web, run)
    live(watcher)
    # The watcher's draft is kept while the head of the page is replaced.
    menu(watcher, "Send message")
    draft = message_box(watcher)
    draft.fill("half a sent")
    actor.get_by_role("button", name="Pause", exact=True).click()
    status(watcher, "paused")

    expect(draft).to_have_value("half a sent")
    expect(draft).to_be_focused()


@both_ways
def test_the_form_starts_a_run(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    agent = make_agent()
    page = tabs.open(web.url, make_person(agent.project, Role.OPERATOR), javascript=javascript)
    page.goto(f"/p/{agent.project.slug}/runs")
    page.get_by_role("link", name="Start run").first.click()
    page.get_by_text(agent.slug, exact=True).click()
    page.get_by_role("textbox", name="Prompt").fill("Count to three.")
    page.get_by_label("Title").fill("Counting")
    page.get_by_role("button", name="Start run", exact=True).click()
    expect(page).to_have_url(re.compile(r"/runs/[0-9a-f-]{36}$"))

    [run] = AgentRun.objects.filter(agent=agent)
    assert run.title == "Counting"
    expect(page.locator("#timeline")).to_contain_text("Count to three.")
    status(page, "queued")


@both_ways
def test_the_start_form_keeps_input_after_an_error(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    agent = make_agent()
    tabs.expect("422|400")
    page = tabs.open(web.url, make_person(agent.project, Role.OPERATOR), javascript=javascript)
    page.goto(f"/p/{agent.project.slug}/runs/new")
    page.get_by_text(agent.slug, exact=True).click()
    page.get_by_role("textbox", name="Prompt").fill("Count to three.")
    page.get_by_label("Step budget").fill("a few")
    page.get_by_role("button", name="Start run", exact=True).click()
    expect(page.locator(".error").first).to_be_visible()

    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("Count to three.")
    assert not AgentRun.objects.filter(agent=agent).exists()
