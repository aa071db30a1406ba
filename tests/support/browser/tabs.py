"""Browser tabs that collect every problem that a page reports."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response

from tests.support.accounts import session_of

#: Errors that a browser reports when the server is down, the connection is cut, or the response is 503.
GONE = (
    "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_FAILED|503"
    "|ERR_INTERNET_DISCONNECTED|ERR_SOCKET_NOT_CONNECTED|ERR_NETWORK_CHANGED|htmx:sendError|htmx:afterRequest"
)
#: Reports each violation of the Content-Security-Policy, including those without a visible effect.
TELL_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => {
  const { effectiveDirective, blockedURI, sample, sourceFile, lineNumber } = event;
  tellViolation(`${effectiveDirective} ${blockedURI} ${sample} at ${sourceFile}:${lineNumber}`);
});
"""


@dataclass
class Tabs:
    """Opens each page in a separate browser context, and collects the problems of all pages."""

    browser: Browser
    problems: list[str] = field(default_factory=list)
    _expected: list[str] = field(default_factory=list)
    _pages: list[Page] = field(default_factory=list)

    def open(self, base_url: str, person: User | None = None, *, javascript: bool = True, **options: Any) -> Page:
        """Return a page with this base URL, signed in as `person` if given."""
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
        """Allow problems that match the pattern."""
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
        # Leaving a page aborts its open requests.
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
