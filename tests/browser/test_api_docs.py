"""Test the API's documentation page: Swagger UI, under a content security policy slightly wider than the site's."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from runs.models import AgentRun
from tests.support.browser import Tabs
from tests.support.factories import make_person, make_project
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
#: Timeout in milliseconds. Swagger UI builds the whole document, with hundreds of operations, before it reacts to
#: clicks, and again when a section is opened.
BUILT_MS = 60_000


def test_the_page_shows_the_document_and_sends_requests(tabs: Tabs, web: WebThread) -> None:
    project = make_project()
    page = tabs.open(web.url, make_person(project))
    page.set_default_timeout(BUILT_MS)
    page.goto("/api/docs")
    page.get_by_role("link", name="projects", exact=True).click()
    page.get_by_text("List the projects that the caller may see").click()
    page.get_by_role("button", name="Execute", exact=True).click()

    answer = page.locator(".live-responses-table")
    expect(answer).to_contain_text(f'"slug": "{project.slug}"', timeout=BUILT_MS)


def test_a_post_is_sent_with_its_token(tabs: Tabs, web: WebThread) -> None:
    project = make_project()
    page = tabs.open(web.url, make_person(project))
    page.set_default_timeout(BUILT_MS)
    tabs.expect("422|console error")
    page.goto("/api/docs")
    page.get_by_role("link", name="agent-runs", exact=True).click()
    page.get_by_text("Start a run of an agent.").click()
    page.get_by_role("textbox", name="project").first.fill(project.slug)
    page.get_by_role("button", name="Execute", exact=True).click()

    # The CSRF check passed; the server refuses only the agent.
    expect(page.locator(".live-responses-table")).to_contain_text("agent_not_found", timeout=BUILT_MS)
    assert not AgentRun.objects.exists()


def test_the_page_uses_the_sites_theme(tabs: Tabs, web: WebThread) -> None:
    page = tabs.open(web.url, make_person(make_project()), color_scheme="dark")
    page.goto("/api/docs")

    expect(page.locator("html")).to_have_class("dark-mode")
    expect(page.locator(".opblock-tag").first).to_be_visible(timeout=BUILT_MS)
