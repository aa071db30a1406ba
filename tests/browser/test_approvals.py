"""Test approvals in a browser: the inbox and the gate of a run, without scripts, by keyboard, on a narrow screen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Role
from runs.lifecycle.approval_decisions import Decision, decide
from runs.models import AgentRun, AgentRunToolCall, Approval
from tests.support.browser import Tabs, open_run
from tests.support.engine import make_asking
from tests.support.factories import drive, make_awaiting_approval, make_person, make_project, make_waiting
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def run(web: WebThread) -> AgentRun:
    return make_awaiting_approval(make_project("alpha"))


def assert_fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def press_while_the_list_is_loaded_again(page: Page, place: Locator) -> None:
    """Press a button of the inbox, and release it only after the list was loaded again, as it is every ten seconds."""
    page.evaluate("document.getElementById('waiting').dataset.old = ''")
    place.hover()
    page.mouse.down()
    page.evaluate("htmx.ajax('GET', location.href, { source: '#waiting' })")
    expect(page.locator("#waiting[data-old]")).to_have_count(1)
    page.mouse.up()
    expect(page.locator("#waiting[data-old]")).to_have_count(0)


def call_of(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.filter(run=run, approval__isnull=False).earliest("pk")


@pytest.mark.smoke
def test_a_call_is_edited_and_approved_without_scripts(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), javascript=False)
    open_run(page, run)
    page.get_by_role("link", name="Needs you: 1").click()
    place = page.locator(f"#approval-{Approval.objects.get(run=run).pk}")
    place.get_by_text("Edit and approve…").click()
    place.get_by_label("Arguments", exact=True).fill('{"pattern": "x"}')
    place.get_by_role("button", name="Approve edited call").click()

    expect(page.get_by_text("approved. The run continues.")).to_be_visible()
    expect(page.get_by_role("heading", name="Nothing needs you")).to_be_visible()
    assert call_of(run).changed_arguments == {"pattern": "x"}


def test_the_inbox_of_all_projects_has_a_menu_and_resolves_each_kind(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    asking, lost = make_asking(run.project), make_waiting(run.project)
    person = make_person(run.project, Role.OPERATOR)
    add_member(make_project("beta"), person, Role.VIEWER, actor=SYSTEM)
    page = tabs.open(web.url, person, viewport={"width": 400, "height": 800})
    page.goto(f"{web.url}/p/alpha/approvals")
    page.get_by_role("link", name="Show all projects").click()
    expect(page.get_by_role("heading", name="Needs you, in all projects")).to_be_visible()
    page.locator("summary", has_text="All projects").click()
    expect(page.get_by_role("link", name="Beta")).to_be_visible()
    assert_fits(page)
    page.keyboard.press("Escape")

    page.get_by_role("link", name="Questions").click()
    entry = page.locator(".waiting-item")
    expect(entry).to_contain_text("Which one?")
    entry.get_by_label("Your answer").fill("This one.")
    entry.get_by_role("button", name="Send answer").click()
    expect(page.get_by_text("Answer sent. The run continues.")).to_be_visible()
    page.get_by_role("link", name="Unknown outcomes").click()
    press_while_the_list_is_loaded_again(page, entry.get_by_text("Mark as done…"))
    assert_fits(page)
    entry.get_by_role("button", name="Mark as done").click()
    expect(page.get_by_text("Outcome recorded. The run continues.")).to_be_visible()
    expect(page.get_by_role("heading", name="Nothing of this kind needs you")).to_be_visible()
    page.get_by_role("link", name="All", exact=True).click()
    expect(page.locator(".waiting-item")).to_have_count(1)
    assert [AgentRun.objects.get(pk=each.pk).status for each in (asking, lost)] == ["queued", "queued"]


def test_another_users_decision_updates_an_open_gate(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run)
    place = page.locator(f"#approval-{Approval.objects.get(run=run).pk}")
    place.get_by_text("Deny…").click()
    place.get_by_label("Message to the model").fill("Use the copy.")
    decide(run.pk, call_of(run).pk, Decision(approves=True), by="user:bob")
    expect(place).to_have_count(0)
    expect(page.get_by_text("approved by user:bob")).to_be_visible()


def test_a_denial_by_keyboard_reaches_the_model(tabs: Tabs, web: WebThread, run: AgentRun) -> None:
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    page.goto(f"{web.url}/p/alpha/approvals")
    place = page.locator(f"#approval-{Approval.objects.get(run=run).pk}")
    place.get_by_text("Deny…").press("Enter")
    place.get_by_label("Message to the model").fill("Use the copy.")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("denied. The run continues.")).to_be_visible()
    drive(run)
    assert str(call_of(run).output).endswith("Use the copy.")
