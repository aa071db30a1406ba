"""The product's static/js/rows.js in a browser, on a page without a server. The test supplies rows and messages."""

from __future__ import annotations

from collections.abc import Sequence

from playwright.sync_api import Browser, Route

from runs.models import AgentRun
from tests.support.pages.parsed_page import Page
from tests.support.pages.timelines import live, painted_html
from tests.support.paths import ROOT

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

    def receive(self, rows: str, messages: Sequence[str]) -> Page:
        """Return the page that starts with `rows` (HTML) and receives `messages`, in order."""
        return Page(self._page.evaluate(FOLLOW, [rows, list(messages)]))

    def follow(self, run: AgentRun, cut: int, *, batch: int = 200) -> Page:
        """Return the page that was rendered at sequence number `cut`, and followed to the end of the log."""
        return self.receive(painted_html(run, cut), live(run, cut, batch=batch))

    def repeat(self, facts: str) -> list[str]:
        """Send facts, replace them by the page's head, and send them again. Return the facts that are then visible."""
        shown: list[str] = self._page.evaluate(REPEAT_FACTS, facts)
        return shown

    def close(self) -> None:
        self._page.close()

    @staticmethod
    def _answer(route: Route) -> None:
        route.fulfill(body=EMPTY, content_type="text/html; charset=utf-8")
