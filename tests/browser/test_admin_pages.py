"""The administration under the site's own policy: its pages load and its scripts run, without one violation."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from tests.browser.conftest import Tabs
from tests.web.people import PASSWORD
from tests.web.serving import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def boss(web: WebThread) -> User:
    return User.objects.create_superuser("boss", password=PASSWORD)


def test_it_is_entered_by_the_sites_own_login(tabs: Tabs, web: WebThread, boss: User) -> None:
    page = tabs.open(web.url)
    page.goto("/admin/")
    expect(page).to_have_url(re.compile("/login[?]next="))
    page.get_by_label("User name").fill("boss")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()

    expect(page).to_have_url(f"{web.url}/admin/")
    expect(page.get_by_role("heading", name="Site administration")).to_be_visible()


def test_its_scripts_work(tabs: Tabs, web: WebThread, boss: User) -> None:
    """They put HTML into the page as strings, which takes the policy of static/js/trusted.js."""
    page = tabs.open(web.url, boss)
    page.goto("/admin/auth/user/")
    page.get_by_role("checkbox").first.check()
    expect(page.get_by_text("1 of 1 selected")).to_be_visible()

    page.goto(f"/admin/auth/user/{boss.pk}/change/")
    # The calendar and the two boxes of permissions are made by scripts.
    expect(page.locator(".datetimeshortcuts").first).to_be_visible()
    page.locator(".datetimeshortcuts a").nth(1).click()
    expect(page.locator(".calendarbox").first).to_be_visible()
    expect(page.locator("#id_user_permissions_from option").first).to_be_attached()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
