"""Test that a browser loads each static file once, under one URL, and not again with the next page."""

from __future__ import annotations

from collections import Counter
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from agentops.accounts.models import Role
from tests.support.browser import Tabs, live, open_run
from tests.support.factories import make_person, make_run
from tests.support.timelines import grow
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]

#: Bytes transferred for each static file of the page; 0 if it was cached.
LOADED = """() => performance.getEntriesByType("resource").filter((file) => file.name.includes("/static/"))
  .map((file) => [file.name, file.transferSize])"""


def loaded(page: Page) -> dict[str, int]:
    """Return the bytes of each file by path. Fail if a file was loaded under two URLs."""
    files: list[tuple[str, int]] = page.evaluate(LOADED)
    addresses = {name for name, _ in files}
    assert not [address for address in addresses if "?v=" not in address]
    assert max(Counter(urlsplit(address).path for address in addresses).values()) == 1
    return {urlsplit(name).path: size for name, size in files}


def test_the_page_of_a_run_loads_each_file_once(tabs: Tabs, web: WebThread) -> None:
    run = make_run()
    grow(run, 3)
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    open_run(page, run)
    live(page)
    # Its row arrives through the stream, with icons.
    grow(run, 1)
    page.wait_for_function("document.querySelectorAll('#timeline > li[data-seq]').length >= 4")

    first = loaded(page)
    scripts = [path for path in asked if path.endswith(".js")]
    assert len(scripts) == len(set(scripts)) == page.locator("script[src]").count()
    assert {"/static/js/rows.js", "/static/css/timeline.css", "/static/icons.svg"} <= set(first)
    assert all(first.values())

    page.goto(f"/p/{run.project.slug}/runs")
    again = loaded(page)
    assert set(again) & set(first)
    assert not [path for path, size in again.items() if size and path in first]
