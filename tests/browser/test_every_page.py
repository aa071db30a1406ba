"""Check every page and state with axe-core, for overflow and for policy violations; light, dark and narrow.

With SCREENSHOTS=DIRECTORY it saves a screenshot of each in every look (`make screenshots`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from runs.worker.worker import Worker
from tests.support.browser import Tabs, misfits, obstacles
from tests.support.component_page import GROUPS
from tests.support.gallery import SampleSite, Shown, make_sample_site, opened_pages, shown_components, shown_pages
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
PICTURES = os.environ.get("SCREENSHOTS", "")
STICKS_OUT = """() => [...document.querySelectorAll("body *")]
  .filter(node => node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(node => `${node.tagName}.${node.className}`).slice(0, 5)"""


class Look(NamedTuple):
    """A size and color scheme. A page is loaded once and switched between looks: see tests/test_static_rules.py."""

    scheme: Literal["light", "dark"]
    width: int
    height: int
    #: Whether the previous look has the same size, so that only colors must be checked.
    differs_in_colours_only: bool = False
    #: Prefix of the names of pages whose style differs in this look; empty: all pages.
    only_for: str = ""

    def adopt(self, page: Page) -> None:
        page.set_viewport_size({"width": self.width, "height": self.height})
        page.emulate_media(color_scheme=self.scheme, reduced_motion="reduce")


LOOKS = {
    "light": Look("light", 1280, 800),
    "dark": Look("dark", 1280, 800, differs_in_colours_only=True),
    "narrow": Look("light", 320, 700),
    "wide": Look("light", 1920, 1080, only_for="" if PICTURES else "runs-run_id"),
}


@pytest.fixture
def site(web: WebThread, worker: Worker) -> SampleSite:
    return make_sample_site(worker)


@pytest.mark.breaks_invariants("a message gets a picture after it was stored, and a run is older than its events")
@pytest.mark.parametrize("half", [0, 1], ids=["one half", "the other half"])
def test_every_page_is_accessible(tabs: Tabs, web: WebThread, site: SampleSite, half: int) -> None:
    tabs.expect("answered (400|403|404|409|422)|status of (400|403|404|409|422)")
    shown = [*shown_pages(site), *opened_pages(site)]
    assert len({each.name for each in shown}) == len(shown)
    found: list[str] = []
    for person in {each.person for each in shown}:
        page = tabs.open(web.url, person)
        found += _look_at(page, [each for each in shown[half::2] if each.person == person])
    assert not found, "\n".join(found)


@pytest.mark.usefixtures("components")
@pytest.mark.parametrize("group", GROUPS)
def test_every_component_is_accessible(tabs: Tabs, web: WebThread, group: str) -> None:
    tabs.expect("answered 404|status of 404")  # hostile content has a missing picture
    boss = User.objects.create_superuser("boss")
    found = _look_at(tabs.open(web.url, boss), shown_components(group, boss))
    assert not found, "\n".join(found)


def _look_at(page: Page, shown: Iterable[Shown]) -> list[str]:
    return [f"{each.name}: {fault}" for each in shown for fault in _faults(page, each)]


def _faults(page: Page, shown: Shown) -> Iterator[str]:
    LOOKS["light"].adopt(page)
    answer = page.goto(shown.path, wait_until="load")
    assert answer is not None
    if answer.status != shown.status:
        yield f"status {answer.status}"
    shown.act(page)
    if (headings := page.locator("h1").count()) != 1:
        yield f"{headings} headings of level 1"
    for name, look in LOOKS.items():
        if not shown.name.startswith(look.only_for):
            continue
        look.adopt(page)
        yield from (f"{name}: {fault}" for fault in _faults_in(page, look))
        _keep_picture(page, f"{shown.name}-{name}")
    yield from misfits(page)


def _faults_in(page: Page, look: Look) -> list[str]:
    # Content is dimmed while a request loads.
    expect(page.locator(".htmx-request")).to_have_count(0)
    found = obstacles(page, of_colours_only=look.differs_in_colours_only)
    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        found.append(f"sticks out: {page.evaluate(STICKS_OUT)}")
    return found


def _keep_picture(page: Page, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(PICTURES, f"{name}.png"), full_page=False)
