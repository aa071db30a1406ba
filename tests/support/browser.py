"""Browser tabs that collect every problem a page reports, and checks of a page: faults, fit, copies, rows of a run.

May import Playwright.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from django.conf import settings
from django.contrib.auth.models import User
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Response, Route, expect

from runs.models import AgentRun
from tests.support.factories import session_of
from tests.support.machine import ROOT
from tests.support.pages import ParsedPage
from tests.support.timelines import live_messages, painted_html

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


#: Text that differs between two reads of the same row: durations and relative times.
_MOVING = re.compile(r"\b\d+(\.\d+)? (ms|s|min|h)\b( \d+ (s|min)\b)?|just now|\d+ s ago")


def open_run(page: Page, run: AgentRun, query: str = "") -> None:
    page.goto(f"/runs/{run.pk}{query}")


def live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("Live")


def status(page: Page, word: str, *, timeout: float = 10_000) -> None:
    expect(page.locator("#run-line .status")).to_have_text(word, timeout=timeout)


def row_ids(page: Page) -> list[str]:
    """Return the IDs of the timeline's rows, in order, without the link to older rows."""
    ids: list[str] = page.eval_on_selector_all("#timeline > li:not(.older)", "rows => rows.map(row => row.id)")
    return ids


def seqs(page: Page) -> list[int]:
    found: list[int] = page.eval_on_selector_all(
        "#timeline > li[data-seq]", "rows => rows.map(row => Number(row.dataset.seq))"
    )
    return found


def texts(page: Page) -> list[str]:
    """Return the rows' texts, without durations and relative times."""
    found = page.eval_on_selector_all(
        "#timeline > li:not(.older)", "rows => rows.map(row => row.textContent.replace(/\\s+/g, ' ').trim())"
    )
    return [_MOVING.sub("…", text) for text in found]


def assert_each_once(page: Page) -> None:
    ids = row_ids(page)
    assert len(ids) == len(set(ids)), f"doubled: {sorted(each for each in ids if ids.count(each) > 1)}"
    found = seqs(page)  # Read once: a live page grows between two reads.
    assert found == sorted(found), "out of order"


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


#: The axe-core rules that depend on colours.
COLOUR_RULES = ["color-contrast", "link-in-text-block"]


def obstacles(page: Page, *, of_colours_only: bool = False) -> list[str]:
    """Return the violated rules of axe-core, each with the first element that violates it.

    `of_colours_only`: check only the rules that depend on colours, for a page that is already checked in other colours.
    """
    # axe-core stays loaded until the page is left.
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if of_colours_only:
        options["runOnly"] = {"type": "rule", "values": COLOUR_RULES}
    found = page.evaluate("options => axe.run(options).then(results => results.violations)", options)
    return [f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:200]}" for rule in found]


MENU_SIZES = ((1280, 800), (390, 844))
NAME_SIZES = (*MENU_SIZES, (1024, 768))
#: A control may need vertical scrolling, but not horizontal scrolling.
_OUTSIDE = """() => {
  const faults = [];
  const isWithin = (from, to, low, high) => from >= low - 1 && to <= high + 1;
  const isInside = (a, b) => isWithin(a.left, a.right, b.left, b.right) && isWithin(a.top, a.bottom, b.top, b.bottom);
  for (const panel of document.querySelectorAll("details > :is(.menu-list, .menu-panel)")) {
    const closed = [];
    for (let each = panel.parentElement; each; each = each.parentElement.closest("details")) {
      if (!each.open) closed.push(each);
      each.open = true;
    }
    const name = panel.parentElement.querySelector("summary").textContent.trim();
    if (panel.checkVisibility() && panel.scrollWidth > panel.clientWidth + 1) faults.push(`${name}: scrolls sideways`);
    for (const control of panel.querySelectorAll("a, button, input:not([type=hidden]), textarea, select, summary")) {
      if (!control.checkVisibility() || !control.getClientRects().length) continue;
      control.scrollIntoView({ block: "nearest" });
      const rect = control.getBoundingClientRect();
      const view = { left: 0, top: 0, right: document.documentElement.clientWidth, bottom: innerHeight };
      const label = control.textContent.trim().slice(0, 30) || control.name;
      if (!isInside(rect, panel.getBoundingClientRect())) faults.push(`${name}: ${label} is outside of the menu`);
      if (!isInside(rect, view)) faults.push(`${name}: ${label} is outside of the window`);
    }
    for (const each of closed) each.open = false;
  }
  scrollTo(0, 0);
  return faults;
}"""
#: Text of users and runners, in bdi elements, may be truncated.
_CUT = """() => [...document.querySelectorAll("nav a, button, .button, [role=tab], .view-name, .menu > summary")]
  .flatMap(each => [each, ...each.querySelectorAll("*")])
  .filter(each => !each.closest("bdi") && !each.querySelector("bdi") && each.checkVisibility())
  .filter(each => getComputedStyle(each).textOverflow === "ellipsis" && each.scrollWidth > each.clientWidth)
  .map(each => each.textContent.trim())"""


def misfits(page: Page) -> list[str]:
    """Return what does not fit, at each size. The page keeps the last size."""
    found: list[str] = []
    for width, height in NAME_SIZES:
        page.set_viewport_size({"width": width, "height": height})
        found += [f"{width}: cut: {name}" for name in page.evaluate(_CUT)]
        if (width, height) in MENU_SIZES:
            found += [f"{width}: menu {fault}" for fault in page.evaluate(_OUTSIDE)]
    return found


#: Options of a browser context that allow it to read the clipboard.
CLIPBOARD: dict[str, Any] = {"permissions": ["clipboard-read", "clipboard-write"]}
#: Records each label of a button. A slow machine may read the label only after the feedback has disappeared.
RECORD_LABELS = """button => {
  button.dataset.labels = button.textContent;
  const record = () => { button.dataset.labels += `, ${button.textContent}`; };
  new MutationObserver(record).observe(button, { childList: true });
}"""


def copy(button: Locator) -> str:
    """Click a copy button and return the clipboard. `button` must not match by its label, which changes."""
    label = button.inner_text()
    button.evaluate(RECORD_LABELS)
    button.click()
    expect(button).to_have_attribute("data-labels", f"{label}, Copied, {label}")
    copied: str = button.page.evaluate("navigator.clipboard.readText()")
    return copied


ADDRESS = "http://127.0.0.1/timeline"
SCRIPTS = ["static/vendor/htmx-2.0.11.min.js", "static/js/edges.js", "static/js/rows.js"]
EMPTY = '<!doctype html><title>x</title><dl id="facts"></dl><ol id="timeline" data-last="0" data-most-rows="5000"></ol>'
#: Waits until everything is placed: each frame places only a part of the messages.
FOLLOW = """async ([rows, messages]) => {
  const timeline = document.getElementById("timeline");
  const faults = [];
  timeline.addEventListener("agentops:start-over", () => faults.push("it wants to start over"), { once: true });
  timeline.innerHTML = rows;
  timeline.dataset.last = "0";
  let placed = 0;
  const count = ({ detail }) => (placed += detail.events);
  timeline.addEventListener("agentops:rows", count);
  messages.forEach((data, number) => {
    const detail = { data, lastEventId: String(number + 1) };
    timeline.dispatchEvent(new CustomEvent("htmx:sseBeforeMessage", { detail, cancelable: true }));
  });
  while (placed < messages.length && !faults.length) await new Promise((resolve) => requestAnimationFrame(resolve));
  timeline.removeEventListener("agentops:rows", count);
  if (faults.length) throw new Error(faults[0]);
  return document.getElementById("facts").outerHTML + timeline.outerHTML;
}"""

#: Sends the same facts twice, half a second apart. In between, the reloaded head of the page shows others.
REPEAT_FACTS = """async (facts) => {
  const timeline = document.getElementById("timeline");
  const data = `<dl id="facts" hx-swap-oob="true">${facts}</dl>`;
  const tell = async (number) => {
    const detail = { data, lastEventId: String(number) };
    timeline.dispatchEvent(new CustomEvent("htmx:sseBeforeMessage", { detail, cancelable: true }));
    await new Promise((resolve) => setTimeout(resolve, 700));
    return document.getElementById("facts").textContent;
  };
  timeline.dataset.last = "0";
  const first = await tell(1);
  document.getElementById("facts").outerHTML = '<dl id="facts">others</dl>';
  return [first, document.getElementById("facts").textContent, await tell(2)];
}"""


class LiveTimeline:
    """A timeline that places live rows as the page of a run does."""

    def __init__(self, browser: Browser) -> None:
        self._page = browser.new_page()
        self._page.route(ADDRESS, self._answer)
        self._page.goto(ADDRESS)
        for script in SCRIPTS:
            self._page.add_script_tag(path=ROOT / script)

    def receive(self, rows: str, messages: Sequence[str]) -> ParsedPage:
        """Return the page that starts with `rows` (HTML) and receives `messages`, in order."""
        return ParsedPage(self._page.evaluate(FOLLOW, [rows, list(messages)]))

    def follow(self, run: AgentRun, cut: int, *, batch: int = 200) -> ParsedPage:
        """Return the page that was rendered at sequence number `cut`, and followed to the end of the log."""
        return self.receive(painted_html(run, cut), live_messages(run, cut, batch=batch))

    def repeat(self, facts: str) -> list[str]:
        """Send facts, replace them by the page's head, and send them again. Return the facts that are then visible."""
        shown: list[str] = self._page.evaluate(REPEAT_FACTS, facts)
        return shown

    def close(self) -> None:
        self._page.close()

    @staticmethod
    def _answer(route: Route) -> None:
        route.fulfill(body=EMPTY, content_type="text/html; charset=utf-8")
