"""Every page and state: no obstacle for axe-core, nothing sticks out, nothing against the policy; light, dark, narrow.

With SCREENSHOTS=DIRECTORY it keeps a picture of each in every variant (`make screenshots`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page

from runs.pages.components.components_page import GROUPS
from runs.worker.worker import Worker
from tests.support.browser.accessibility import obstacles
from tests.support.browser.tabs import Tabs
from tests.support.gallery.sample_site import SampleSite, make_sample_site
from tests.support.gallery.shown_pages import Shown, shown_components, shown_pages
from tests.support.web.server import WebThread

pytestmark = [pytest.mark.browser]
PICTURES = os.environ.get("SCREENSHOTS", "")
VARIANTS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 320, "height": 700}},
}
#: Nothing more is asked of it than of the others, but it has to be looked at.
WIDE: dict[str, dict[str, Any]] = {"wide": {"color_scheme": "light", "viewport": {"width": 1920, "height": 1080}}}
STICKS_OUT = """() => [...document.querySelectorAll("body *")]
  .filter(node => node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(node => `${node.tagName}.${node.className}`).slice(0, 5)"""


@pytest.fixture
def site(web: WebThread, worker: Worker) -> SampleSite:
    return make_sample_site(worker)


@pytest.mark.breaks_invariants("a message gets a picture after it was stored")
@pytest.mark.parametrize("half", [0, 1], ids=["one half", "the other half"])
@pytest.mark.parametrize("variant", VARIANTS | (WIDE if PICTURES else {}))
def test_every_page_can_be_read_by_everybody(
    tabs: Tabs, web: WebThread, site: SampleSite, variant: str, half: int
) -> None:
    tabs.expect("answered (400|403|404|409)|status of (400|403|404|409)")
    shown = list(shown_pages(site))
    assert len({each.name for each in shown}) == len(shown)
    faults: list[str] = []
    for person in {each.person for each in shown}:
        page = tabs.open(web.url, person, reduced_motion="reduce", **(VARIANTS | WIDE)[variant])
        faults += _look_at(page, variant, [each for each in shown[half::2] if each.person == person])
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("variant", VARIANTS | (WIDE if PICTURES else {}))
def test_every_component_can_be_read_by_everybody(tabs: Tabs, web: WebThread, variant: str, group: str) -> None:
    tabs.expect("answered 404|status of 404")  # hostile content has a picture that is not there
    boss = User.objects.create_superuser("boss")
    page = tabs.open(web.url, boss, reduced_motion="reduce", **(VARIANTS | WIDE)[variant])

    faults = _look_at(page, variant, shown_components(group, boss))
    assert not faults, "\n".join(faults)


def _look_at(page: Page, variant: str, shown: Iterable[Shown]) -> list[str]:
    faults: list[str] = []
    for each in shown:
        faults += [f"{each.name}: {what}" for what in _faults(page, each)]
        _keep_picture(page, f"{each.name}-{variant}")
    return faults


def _faults(page: Page, shown: Shown) -> list[str]:
    answer = page.goto(shown.path, wait_until="load")
    assert answer is not None
    faults = [] if answer.status == shown.status else [f"status {answer.status}"]
    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        faults.append(f"sticks out: {page.evaluate(STICKS_OUT)}")
    if page.locator("h1").count() != 1:
        faults.append(f"{page.locator('h1').count()} headings of level 1")
    return faults + obstacles(page)


def _keep_picture(page: Page, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(PICTURES, f"{name}.png"), full_page=False)
