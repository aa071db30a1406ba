"""Test the tree of a run in a browser: it updates live, keeps collapsed rows, and lists the runs that a stop ends."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.lifecycle import inbox
from runs.models import AgentRun
from tests.support.browser import Tabs
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
LONG = "Compare the prices of every supplier in the list, and say which of them has raised one " * 3


@pytest.fixture
def top(web: WebThread) -> AgentRun:
    """Create a run with two children, the first of which has a child."""
    agent = make_agent(make_project("alpha"), slug="helper")
    top = make_run(agent, "Prepare the report")
    one = make_run(agent, "Read the sources", parent_id=top.pk)
    make_run(agent, LONG, parent_id=one.pk)
    make_run(agent, "Check the figures", parent_id=top.pk)
    return top


def open_tree(tabs: Tabs, web: WebThread, top: AgentRun, **options: object) -> Page:
    page = tabs.open(web.url, make_person(top.project, Role.OPERATOR), **options)
    page.goto(f"/runs/{top.pk}/tree")
    return page


@pytest.mark.smoke
def test_a_tree_is_collapsed_and_stopped_without_scripts(tabs: Tabs, web: WebThread, top: AgentRun) -> None:
    page = open_tree(tabs, web, top, javascript=False)
    leaf = page.get_by_role("link", name=re.compile("^Compare the prices"))
    expect(leaf).to_be_visible()
    page.get_by_label("1 run below Read the sources").click()
    expect(leaf).to_have_count(0)
    page.get_by_text("Stop…").click()
    expect(page.get_by_text("Stops 3 child runs too:")).to_be_visible()
    page.get_by_role("button", name="Stop 4 runs").click()

    expect(page).to_have_url(re.compile(f"/runs/{top.pk}/tree$"))
    assert set(AgentRun.objects.values_list("status", flat=True)) == {"stopped"}


def test_an_open_tree_updates_and_keeps_collapsed_rows(tabs: Tabs, web: WebThread, top: AgentRun) -> None:
    page = open_tree(tabs, web, top)
    one, figures = AgentRun.objects.filter(parent_run=top).order_by("pk")
    page.get_by_label("1 run below Read the sources").press("Enter")
    expect(page.locator("tr.run")).to_have_count(3)
    expect(page).to_have_url(re.compile(f"closed={one.pk}"))
    # The focus stays on the toggle.
    expect(page.locator(f"#toggle-{one.pk}")).to_be_focused()
    drive(figures)
    expect(page.locator(f"#run-{figures.pk} .of-status")).to_have_text("completed")
    later = make_run(top.agent, "Come later", parent_id=top.pk)
    expect(page.locator(f"#run-{later.pk}")).to_be_visible()
    expect(page.locator("tr.run")).to_have_count(4)

    inbox.stop(top.pk, by="test")
    expect(page.locator(f"#run-{one.pk} .of-status")).to_contain_text("stopped")
    expect(page.get_by_role("button", name=re.compile("^Stop"))).to_be_disabled()
