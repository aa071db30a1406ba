"""A request that is held until the test releases it."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Page, Route


def until(page: Page, is_done: Callable[[], object], *, why: str, within_s: float = 10) -> None:
    """Wait as `eventually` does, and process browser events during the wait."""
    end = time.monotonic() + within_s
    while not is_done():
        assert time.monotonic() < end, f"not within {within_s:g} s: {why}"
        page.wait_for_timeout(30)


class HeldRequest:
    """The requests of a page whose URLs match a pattern."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._page, self._pattern = page, pattern
        self._routes: list[Route] = []
        page.route(pattern, self._hold)

    def _hold(self, route: Route) -> None:
        self._routes.append(route)

    def wait(self) -> None:
        """Return when the page has sent the request."""
        until(self._page, lambda: self._routes, why=f"the page asks for {self._pattern}")

    def release(self) -> None:
        for route in self._routes:
            route.continue_()
