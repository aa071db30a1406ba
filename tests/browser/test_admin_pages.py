"""Test the administration under the site's content security policy: pages load and scripts run without a violation."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from runs.models import AgentRun
from tests.support.admin_rows import fill, fill_global, list_url, page_url, registered
from tests.support.browser import Tabs
from tests.support.factories import PASSWORD, make_project
from tests.support.pages import HOSTILE
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def boss(web: WebThread) -> User:
    return User.objects.create_superuser("boss", password=PASSWORD)


def test_the_admin_uses_the_sites_login(tabs: Tabs, web: WebThread, boss: User) -> None:
    page = tabs.open(web.url)
    page.goto("/admin/")
    expect(page).to_have_url(re.compile("/login[?]next="))
    page.get_by_label("Username").fill("boss")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()

    expect(page).to_have_url(f"{web.url}/admin/")
    expect(page.get_by_role("heading", name="Site administration")).to_be_visible()


def test_the_admins_scripts_work(tabs: Tabs, web: WebThread, boss: User) -> None:
    """They insert HTML as strings, which requires the policy in static/js/trusted.js."""
    page = tabs.open(web.url, boss)
    page.goto("/admin/auth/user/")
    page.get_by_role("checkbox").first.check()
    expect(page.get_by_text("1 of 1 selected")).to_be_visible()

    page.goto(f"/admin/auth/user/{boss.pk}/change/")
    # A script creates the calendar.
    expect(page.locator(".datetimeshortcuts").first).to_be_visible()
    page.locator(".datetimeshortcuts a").nth(1).click()
    expect(page.locator(".calendarbox").first).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()


@pytest.mark.breaks_invariants("rows are made by hand")
def test_the_products_tables_load_and_offer_actions(tabs: Tabs, web: WebThread, boss: User) -> None:
    """Open every list and page with hostile rows, without a violation, and stop runs."""
    project = make_project()
    run = fill(project, rows=2, text=f"{HOSTILE[0]}{HOSTILE[1]}")
    fill_global()
    page = tabs.open(web.url, boss)
    for model in registered():
        page.goto(list_url(model))
        expect(page.locator("#content h1")).to_be_visible()
        page.goto(page_url(model._default_manager.order_by("pk").last()))  # type: ignore[arg-type]
        expect(page.locator("#content h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    page.goto(f"{list_url(AgentRun)}?project__id__exact={project.pk}")
    page.get_by_role("checkbox").nth(1).check()
    page.get_by_role("checkbox").nth(2).check()
    page.locator("select[name=action]").select_option("stop")
    page.get_by_role("button", name="Go").click()
    page.get_by_role("button", name="Stop 2 runs").click()
    expect(page.get_by_text("Stop requested: 2 runs.")).to_be_visible()
    page.goto(page_url(run))
    page.locator("#content").get_by_role("link", name="events").click()
    expect(page.locator("#result_list tbody tr").first).to_be_visible()


def test_the_color_scheme_applies_to_the_whole_site(tabs: Tabs, web: WebThread, boss: User) -> None:
    page = tabs.open(web.url, boss, color_scheme="light", reduced_motion="reduce")
    page.goto("/admin/")
    assert page.locator("#user-tools a").first.evaluate("link => getComputedStyle(link).transitionProperty") == "none"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("[data-theme-toggle]").click()
    page.locator("[data-theme-toggle]").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.goto("/")

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert (light, dark) == ("rgb(250, 250, 248)", "rgb(19, 20, 22)")
