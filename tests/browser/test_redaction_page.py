"""Test the redaction page in a browser: rules are added, tested and removed, with scripts and without."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Project, Role
from tests.support.browser import Tabs
from tests.support.factories import make_person, make_project
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def project(web: WebThread) -> Project:
    return make_project("alpha")


def add_secret(page: Page, name: str, secret: str) -> None:
    section = page.get_by_role("region", name="Add a secret")
    section.get_by_label("Name").fill(name)
    section.get_by_label("Secret").fill(secret)
    section.get_by_role("button", name="Add secret").click()


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_an_admin_adds_tests_and_removes_rules(tabs: Tabs, web: WebThread, project: Project, javascript: bool) -> None:
    page = tabs.open(web.url, make_person(project, Role.ADMIN), javascript=javascript)
    page.goto("/p/alpha/runs")
    page.get_by_role("navigation", name="Project").get_by_role("link", name="Settings").click()
    page.get_by_role("navigation", name="Settings").get_by_role("link", name="Redaction").click()
    expect(page.get_by_text("This project has no rules of its own.")).to_be_visible()
    add_secret(page, "billing_password", "correct horse battery")
    expect(page.get_by_text("Rule added.")).to_be_visible()
    section = page.get_by_role("region", name="Add a token format")
    section.get_by_label("Name", exact=True).fill("acme_token")
    section.get_by_label("Prefix", exact=True).fill("acme_live_")
    section.get_by_label("Characters that follow").select_option("hex")
    section.get_by_role("button", name="Add token format").click()
    section = page.get_by_role("region", name="Stop masking a built-in kind")
    section.get_by_label("Built-in kind").select_option("jwt")
    section.get_by_role("button", name="Stop masking this kind").click()
    expect(page.get_by_role("row")).to_have_count(4)
    assert "correct horse" not in page.content()

    section = page.get_by_role("region", name="Test the rules")
    section.get_by_label("Text", exact=True).fill("pw: correct horse battery\nacme_live_0123456789abcdef <b>ok</b>")
    section.get_by_role("button", name="Mask text").click()
    expect(section.get_by_role("listitem")).to_contain_text(["rule billing_password", "rule acme_token"])
    expect(section.locator(".payload")).to_contain_text("<b>ok</b>")
    assert "correct horse" not in page.content()
    assert "acme_live_0" not in page.content()

    page.get_by_role("button", name="Remove rule billing_password").click()
    expect(page.get_by_text("Rule removed.")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(3)


def test_a_refused_rule_shows_the_reason(tabs: Tabs, web: WebThread, project: Project) -> None:
    tabs.expect("422")
    page = tabs.open(web.url, make_person(project, Role.ADMIN), viewport={"width": 360, "height": 800})
    page.goto("/p/alpha/settings/redaction")
    add_secret(page, "github_token", "correct horse battery")

    expect(page.get_by_text("'github_token' is a built-in kind.")).to_be_visible()
    expect(page.get_by_role("region", name="Add a secret").get_by_label("Name")).to_have_value("github_token")
    assert "correct horse" not in page.content()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
