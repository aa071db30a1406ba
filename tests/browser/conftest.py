"""Chromium as the distribution ships it, and tabs that report whatever a careful reader would want to know.

May import Playwright, the test server and the suite's builders.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from playwright.sync_api import Browser, expect, sync_playwright

from tests.support.browser.tabs import Tabs
from tests.support.services import chromium_path

ARGS = [
    "--no-sandbox",  # CI is root in a container
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for each module: as long as Playwright is there, this thread seems to run an event loop.

    Django then takes every query for one from asynchronous code and refuses it, and has other connections than
    before; nothing else can run a loop here either. So the permission is given for as long, nobody keeps a
    connection across the border, and all is as it was after the module.
    """
    path = chromium_path()
    expect.set_options(timeout=10_000)
    connections.close_all()
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield browser
        browser.close()
        connections.close_all()


@pytest.fixture
def tabs(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Tabs]:
    """Fails the test where a page said, logged or asked for something that it should not have."""
    # Servers are there before the tabs, and so they end after them.
    for server in {"web", "stage"} & set(request.fixturenames):
        request.getfixturevalue(server)
    tabs = Tabs(chromium)
    yield tabs
    tabs.close()
    assert not tabs.unexpected
