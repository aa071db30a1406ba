"""Take the screenshots of README.md and docs/ on a new site with the demo's runs: `make pictures`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

from tests.support.command_line import Site
from tests.support.machine import ROOT, chromium_path
from tests.support.timing import eventually

#: An agent of the demo's flow that is slow enough for screenshots of its work.
AGENT = "flow-change"
STEPS = 4
WIDTH = 1280
#: Milliseconds until fonts, streams and relative times are stable.
SETTLE_MS = 700


def main() -> None:
    """Start a site, take the screenshots while its runs work, and stop it."""
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        site = Site(Path(folder) / "site").up()
        try:
            browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
            with closing(browser):
                page = browser.new_page(base_url=site.url, color_scheme="light", timezone_id="UTC")
                sign_in(page, site.password or "")
                take_pictures(page, site)
        finally:
            site.kill()


def sign_in(page: Page, password: str) -> None:
    """Log in as the administrator of the demo."""
    page.goto("/login")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()


def take_pictures(page: Page, site: Site) -> None:
    """Take screenshots of a working run, of the start page while a run waits for a person, and of the run's timing."""
    run = site.run_of(AGENT)
    eventually(lambda: site.runs()[AGENT][1] >= STEPS, why="the run has done some steps", within_s=300)
    take(page, f"/runs/{run}", "run", 1160)
    waiting = "SELECT 1 FROM agent_runs WHERE status = 'waiting'"
    eventually(lambda: site.rows(waiting), why="a person is needed", within_s=600)
    take(page, "/p/demo", "overview", 720)
    take(page, f"/runs/{run}/waterfall", "waterfall", 880)


def take(page: Page, path: str, name: str, height: int) -> None:
    """Take a screenshot of the first screen of a page. A live page follows its newest rows until it is scrolled."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.goto(path)
    page.wait_for_timeout(SETTLE_MS)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=ROOT / "docs/images" / f"{name}.png")


if __name__ == "__main__":
    main()
