"""Test the pages of agents in a browser, with scripts and without."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from agentops.accounts.models import Project, Role
from runs.actions import agent_definitions
from runs.models import Agent
from tests.support.browser import Tabs
from tests.support.factories import make_person, make_project
from tests.support.project_rows import REVIEWER
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def project(web: WebThread) -> Project:
    return make_project("alpha")


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_an_admin_creates_and_changes_an_agent(tabs: Tabs, web: WebThread, project: Project, javascript: bool) -> None:
    tabs.expect("422|409")
    person = make_person(project, Role.ADMIN)
    page = tabs.open(web.url, person, javascript=javascript)
    page.goto("/p/alpha/runs")
    page.get_by_role("navigation", name="Project").get_by_role("link", name="Agents").click()
    page.get_by_role("link", name="New agent").first.click()
    page.get_by_label("Name", exact=True).fill("reviewer")
    page.get_by_label("Provider").select_option("fixture")
    page.get_by_label("Model", exact=True).fill("no-such-recording")
    page.get_by_label("Other tools").fill("recorded")
    # Enter only opens the preview.
    page.get_by_label("Steps of a run").press("Enter")
    expect(page.get_by_role("alert").first).to_contain_text("Correct 1 error")
    page.get_by_label("Model", exact=True).fill("claude-code-5c")
    page.get_by_role("button", name="Add rule to Approval rules").click()
    page.get_by_label("Approval rules: Action").select_option("ask")
    page.get_by_label("Approval rules: Tools").fill("deploy")
    page.get_by_role("button", name="Preview changes").click()
    expect(page.get_by_role("heading", name="What will be created")).to_be_visible()
    page.get_by_role("button", name="Create agent").click()
    expect(page.get_by_text("Version 1 saved.")).to_be_visible()

    # Another user saves while the form is open.
    page.get_by_role("link", name="Edit agent").click()
    agent_definitions.apply(project, {**REVIEWER, "policies": {}}, by="user:bob")
    page.get_by_label("Instructions").fill("My own words")
    page.get_by_role("button", name="Save agent").click()
    expect(page.get_by_role("heading", name="Another user has changed this agent")).to_be_visible()
    expect(page.get_by_label("Instructions")).to_have_value("My own words")
    page.get_by_role("button", name="JSON or TOML").click()
    text = page.get_by_label("Definition").input_value()
    page.get_by_label("Definition").fill(text.replace("My own words", "Our words"))
    page.get_by_role("button", name="Save agent").click()
    expect(page.get_by_text("Version 3 saved.")).to_be_visible()
    assert Agent.objects.get().instructions == "Our words"

    page.get_by_role("link", name="Differences of version 3 from the one before").click()
    expect(page.locator(".only-b").first).to_contain_text("Our words")
