"""The product's pages in Chromium, and the times that bench/observe.js records in them.

Uses only URLs and element IDs of the pages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from bench.stacks import PASSWORD, USERNAME, Stack

SCRIPT = Path(__file__).with_name("observe.js")
PATIENCE_MS = 15_000
WIDTH, HEIGHT = 1280, 900


@dataclass(frozen=True)
class Visit:
    """A page opened with an empty cache: milliseconds since the request, and transferred bytes."""

    answered: float
    painted: float
    ready: float
    size: int
    files: int


@dataclass(frozen=True)
class Memory:
    """The JavaScript memory of a page after a garbage collection."""

    heap_mb: float
    nodes: int


@dataclass(frozen=True)
class Busy:
    """The main thread of a page over some time: its processor time, its longest task, and the layout shift of rows."""

    cpu_ms: float
    longest_ms: float
    shift: float


class PageReader:
    """A signed-in user with one tab."""

    def __init__(self, page: Page, stack: Stack) -> None:
        self.page = page
        self._stack = stack
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{stack.url}/login")
        page.fill("#id_username", USERNAME)
        page.fill("#id_password", PASSWORD)
        page.click("main button[type=submit]")
        page.wait_for_url(lambda url: "/login" not in url)

    def open_run(self, run_id: str, *, live: bool = True) -> Visit:
        page = self.page
        with self._protocol() as session:
            session.send("Network.clearBrowserCache")
        page.goto(f"{self._stack.url}/runs/{run_id}")
        page.wait_for_selector("#timeline > [data-seq]")
        if live:
            page.wait_for_selector("#connection[data-state=live]", state="attached")
        page.wait_for_selector("html[data-bench-painted]", state="attached")
        noted = page.evaluate(
            """() => {
                const [nav] = performance.getEntriesByType("navigation");
                const loaded = performance.getEntriesByType("resource").filter((one) => one.responseEnd > 0);
                const size = loaded.reduce((sum, one) => sum + one.transferSize, nav.transferSize);
                return {
                    answered: nav.responseStart,
                    painted: bench.painted - performance.timeOrigin,
                    ready: nav.domContentLoadedEventEnd,
                    size,
                    files: loaded.length + 1,
                };
            }"""
        )
        return Visit(**noted)

    def newest(self) -> int:
        """Return the sequence number of the last event in the page."""
        return int(self.page.get_attribute("#timeline", "data-last") or 0)

    def go_to_step(self, run_id: str, step: int) -> float:
        """Return the milliseconds from the request for a step to the page that shows it, with a warm cache."""
        page = self.page
        page.goto(f"{self._stack.url}/runs/{run_id}?step={step}")
        page.wait_for_selector("#timeline > .is-target")
        page.wait_for_selector("html[data-bench-painted]", state="attached")
        shown: float = page.evaluate(
            """() => {
                const [nav] = performance.getEntriesByType("navigation");
                return Math.max(bench.painted - performance.timeOrigin, nav.domContentLoadedEventEnd);
            }"""
        )
        return shown

    def last_step(self) -> int:
        """Return the last step of the page's run, from the page's step field."""
        return int(self.page.inner_text("#last-step").split()[-1])

    def scroll_back(self, pages: int) -> tuple[Busy, int]:
        """Scroll to the top repeatedly, until older rows appear. Also return the largest number of rows."""
        page, most = self.page, 0
        with self.busy() as so_far:
            for _ in range(pages):
                first = page.get_attribute("#timeline > [data-seq]", "data-seq")
                if not page.locator("#older").count():
                    break
                page.evaluate("document.getElementById('older').scrollIntoView()")
                page.wait_for_selector(f"#timeline > [data-seq]:not([data-seq='{first}'])")
                page.wait_for_selector(f"#timeline > [data-seq='{first}'] ~ *, #newer", state="attached")
                page.wait_for_timeout(200)
                most = max(most, page.locator("#timeline > [data-seq]").count())
            return so_far(), most

    @contextmanager
    def busy(self) -> Iterator[Callable[[], Busy]]:
        """Yield a function that returns the main thread's work so far, in processor time."""
        self.page.evaluate("() => Object.assign(bench, { longest: 0, shift: 0 })")
        with self._protocol() as session:
            session.send("Performance.enable", {"timeDomain": "threadTicks"})

            def cpu_s() -> float:
                found: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
                return float(next(metric["value"] for metric in found if metric["name"] == "TaskDuration"))

            before = cpu_s()

            def so_far() -> Busy:
                noted = self.page.evaluate("() => [bench.longest, bench.shift]")
                return Busy((cpu_s() - before) * 1000, *noted)

            yield so_far

    def memory(self) -> Memory:
        with self._protocol() as session:
            session.send("HeapProfiler.collectGarbage")
            session.send("Performance.enable")
            found: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
        metrics = {metric["name"]: metric["value"] for metric in found}
        return Memory(metrics["JSHeapUsedSize"] / 1e6, int(metrics["Nodes"]))

    @contextmanager
    def _protocol(self) -> Iterator[CDPSession]:
        """Open a session of the Chrome DevTools Protocol, for commands that Playwright lacks."""
        session = self.page.context.new_cdp_session(self.page)
        try:
            yield session
        finally:
            session.detach()


def chromium() -> str | None:
    """Return the path of the installed Chromium."""
    return os.environ.get("BENCH_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-headless-shell")


@contextmanager
def reading(stack: Stack) -> Iterator[PageReader]:
    """Open headless Chromium. This thread cannot use Django's database, because Playwright runs an event loop."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
            context.add_init_script(path=SCRIPT)
            yield PageReader(context.new_page(), stack)
        finally:
            browser.close()
