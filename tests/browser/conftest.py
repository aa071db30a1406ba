"""Chromium as the distribution ships it, and tabs that report whatever a careful reader would want to know.

May import Playwright, the test server and the suite's builders.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect, sync_playwright

from tests.crash.rig import missing
from tests.web.people import session_of

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
#: What a browser says of a server that is gone, or cut off, or says 503.
GONE = (
    "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_FAILED|503"
    "|ERR_INTERNET_DISCONNECTED|ERR_NETWORK_CHANGED|htmx:sendError|htmx:afterRequest"
)
#: Tells of what the Content-Security-Policy has stopped, also where nothing would be seen of it.
TELL_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => {
  const { effectiveDirective, blockedURI, sample, sourceFile, lineNumber } = event;
  tellViolation(`${effectiveDirective} ${blockedURI} ${sample} at ${sourceFile}:${lineNumber}`);
});
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for each module: as long as Playwright is there, this thread seems to run an event loop.

    Django then takes every query for one from asynchronous code and refuses it, and has other connections than
    before; nothing else can run a loop here either. So the permission is given for as long, nobody keeps a
    connection across the border, and all is as it was after the module.
    """
    path = shutil.which("chromium")
    if path is None:
        missing("there is no chromium")
    expect.set_options(timeout=10_000)
    connections.close_all()
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield browser
        browser.close()
        connections.close_all()


@dataclass
class Tabs:
    """Opens pages, each in a context of its own, and collects what goes wrong in any of them."""

    browser: Browser
    problems: list[str] = field(default_factory=list)
    _expected: list[str] = field(default_factory=list)
    _pages: list[Page] = field(default_factory=list)

    def open(self, base_url: str, person: User | None = None, *, javascript: bool = True, **options: Any) -> Page:
        """A page whose addresses begin at `base_url`, for somebody who is signed in."""
        context = self.browser.new_context(base_url=base_url, java_script_enabled=javascript, **options)
        context.set_default_timeout(10_000)
        if person is not None:
            cookie = {"name": settings.SESSION_COOKIE_NAME, "value": session_of(person), "url": base_url}
            context.add_cookies([cookie])  # type: ignore[list-item]
        if javascript:
            context.expose_binding("tellViolation", lambda _, text: self.problems.append(f"CSP: {text}"))
            context.add_init_script(TELL_VIOLATIONS)
        page = context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error in the page: {error}"))
        page.on("dialog", self._dialog)
        page.on("requestfailed", self._failed)
        page.on("request", self._asked)
        page.on("response", self._answered)
        self._pages.append(page)
        return page

    def expect(self, pattern: str) -> None:
        """Problems that match are part of the test."""
        self._expected.append(pattern)

    def close(self) -> None:
        for page in self._pages:
            page.context.close()

    @property
    def unexpected(self) -> list[str]:
        return [each for each in self.problems if not any(re.search(pattern, each) for pattern in self._expected)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console {message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _failed(self, request: Request) -> None:
        # A page that is left takes its open requests with it.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"request failed: {request.url} {request.failure}")

    def _asked(self, request: Request) -> None:
        if request.url.endswith("/csp-report"):
            self.problems.append(f"CSP report: {request.post_data}")
        elif not request.url.startswith("http://127.0.0.1:"):
            self.problems.append(f"a request that leaves the site: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"answered {response.status}: {response.url}")


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
