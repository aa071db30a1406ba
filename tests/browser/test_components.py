"""Test the components of pages in a browser: hostile content has no effect, and the top bar fits every screen."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Project, Role
from tests.support.browser import Tabs
from tests.support.component_page import GROUPS
from tests.support.pages import FOREIGN
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("components")]
#: Height in pixels of a line of the bar, and the minimum width of the project's name.
LINE, LEGIBLE = 40, 60
#: The search form sends requests to its own page.
OWN = 'hx-get="/components/'


def test_hostile_content_does_nothing(tabs: Tabs, web: WebThread) -> None:
    tabs.expect("answered 404|status of 404")  # a missing picture
    page = tabs.open(web.url, User.objects.create_superuser("boss"))
    for group in GROUPS:
        page.goto(f"/components/{group}?content=hostile")
        expect(page.locator(".component").first).to_be_visible()
        assert [each for each in page.evaluate(FOREIGN) if OWN not in each] == [], group


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without scripts"])
@pytest.mark.parametrize("name", ["Demo", "Compare the prices of every supplier " * 4], ids=["short", "long"])
def test_the_top_bar_takes_two_lines_of_a_narrow_screen(
    tabs: Tabs, web: WebThread, name: str, javascript: bool
) -> None:
    boss = User.objects.create_superuser("boss")
    for slug in ("alpha", "beta"):
        add_member(Project.objects.create(slug=slug, name=name), boss, Role.ADMIN, actor=SYSTEM)
    viewport = {"width": 320, "height": 700}
    page = tabs.open(web.url, boss, javascript=javascript, viewport=viewport)
    page.goto("/p/alpha/runs")
    if javascript:
        # Before that, the bar shows the connection state as text.
        expect(page.locator(".topbar .connection")).to_have_attribute("data-state", "live")

    height = page.locator(".topbar").evaluate("bar => bar.offsetHeight")
    assert height <= 2 * LINE
    assert page.locator(".project-menu bdi").first.evaluate("name => name.offsetWidth") >= min(LEGIBLE, 8 * len(name))
    for link in ("Start run", "Search", "Overview"):
        expect(page.locator(".topbar").get_by_role("link", name=link, exact=True)).to_be_in_viewport()
    page.locator(".project-menu > summary").click()
    expect(page.get_by_role("link", name="All projects")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_top_bar_fits_wider_screens(tabs: Tabs, web: WebThread) -> None:
    person = User.objects.create_superuser("alexandra.with.a.long.name@example.org")
    for slug in ("alpha", "beta"):
        add_member(Project.objects.create(slug=slug, name="Compare prices " * 6), person, Role.ADMIN, actor=SYSTEM)
    page = tabs.open(web.url, person)
    page.goto("/p/alpha/runs")
    expect(page.locator(".topbar .connection")).to_have_attribute("data-state", "live")

    for width in (1920, 1409, 1408, 1280, 1249, 1248, 1024, 800, 600):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width
        assert page.locator(".topbar").evaluate("bar => bar.offsetHeight") <= 2 * LINE, width
        assert page.locator(".project-menu bdi").first.evaluate("name => name.offsetWidth") >= LEGIBLE, width
        expect(page.get_by_label("Account: ")).to_be_in_viewport(ratio=1)


def test_a_scrolling_bar_starts_at_the_current_entry(tabs: Tabs, web: WebThread) -> None:
    project = Project.objects.create(slug="alpha", name="Alpha")
    boss = User.objects.create_superuser("boss")
    add_member(project, boss, Role.ADMIN, actor=SYSTEM)
    page = tabs.open(web.url, boss, viewport={"width": 320, "height": 700})
    page.goto("/p/alpha/settings/redaction")

    for bar in (".nav", "main .tabs"):
        assert page.locator(bar).evaluate("bar => bar.scrollWidth > bar.clientWidth"), bar
        expect(page.locator(f"{bar} a[aria-current]")).to_be_in_viewport(ratio=0.9)
    assert page.evaluate("[scrollX, scrollY]") == [0, 0]
