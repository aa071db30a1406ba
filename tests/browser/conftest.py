"""The system's Chromium, and tabs that report errors of the page, the console and requests.

May import Playwright, the test server and the suite's builders.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from playwright.sync_api import Browser, expect, sync_playwright

from tests.support.browser import Tabs
from tests.support.machine import chromium_path

ARGS = [
    "--no-sandbox",  # CI runs as root in a container
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
    """Start one browser for each module.

    While Playwright runs, this thread appears to run an event loop. Django then refuses queries as made from
    asynchronous code, and uses other connections. No other event loop can run here, so the fixture sets
    DJANGO_ALLOW_ASYNC_UNSAFE for this time. It closes all connections before and after, so that none is used on both
    sides.
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
    """Return tabs, and fail the test if a page had an unexpected error, console message or request."""
    # Create servers first, so that they end after the tabs.
    for server in {"web", "stage"} & set(request.fixturenames):
        request.getfixturevalue(server)
    tabs = Tabs(chromium)
    yield tabs
    tabs.close()
    assert not tabs.unexpected
