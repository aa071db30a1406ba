"""States that a page reaches only after an action: open menus and rejected forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from playwright.sync_api import Page, expect

from runs.models import AgentRun
from tests.support.gallery.sample_settings import SECRET
from tests.support.gallery.sample_site import SampleSite
from tests.support.gallery.shown_pages import Shown

Act = Callable[[Page], None]
#: Sets `open` directly: a click would close the other menus, and "Actions" cannot be clicked on a wide screen.
OPEN = """texts => {
  for (const text of texts) {
    const summaries = [...document.querySelectorAll("details > summary")];
    summaries.find(summary => summary.textContent.trim().startsWith(text)).parentElement.open = true;
  }
}"""
OPEN_ALL = """selector => {
  const details = document.querySelectorAll(selector);
  if (!details.length) throw new Error(`nothing to open: ${selector}`);
  details.forEach(each => { each.open = true; });
}"""


def opening(*summaries: str) -> Act:
    """Return an act that opens the first menu whose summary begins with each of these texts."""
    return lambda page: page.evaluate(OPEN, list(summaries))


def opening_all(selector: str) -> Act:
    """Return an act that opens all `details` elements that match."""
    return lambda page: page.evaluate(OPEN_ALL, selector)


def opened_pages(site: SampleSite) -> Iterator[Shown]:
    """Yield the states, each on a separate page. No act changes another page."""
    yield from _of_runs(site)
    yield from _of_decisions(site)
    yield from _of_settings(site)


def _of_runs(site: SampleSite) -> Iterator[Shown]:
    of = {state: f"/runs/{run.pk}" for state, run in site.runs.items()}
    leaf = AgentRun.objects.get(parent_run__parent_run=site.runs["parent"])
    yield Shown("open-run", of["completed"], site.boss, act=opening_all("#timeline details"))
    yield Shown("open-run-resume", of["limited"], site.boss, act=opening("Actions", "Resume"))
    yield Shown("open-run-stop", of["parent"], site.boss, act=opening("Actions", "Stop…"))
    yield Shown("open-run-export", of["queued"], site.boss, act=opening("Export"))
    yield Shown("open-tree-stop", f"{of['parent']}/tree", site.boss, act=opening("Stop…"))
    yield Shown("open-replay-end", f"{of['completed']}/replay?seq=9", site.boss, act=_go_to_the_end)
    yield Shown("open-leaf-stop", f"/runs/{leaf.pk}/tree", site.boss, act=opening("Stop…"))


def _of_decisions(site: SampleSite) -> Iterator[Shown]:
    inbox, everywhere = f"/p/{site.project.slug}/approvals", "/approvals"
    places = {"inbox": inbox, "everywhere": everywhere, "run": f"/runs/{site.runs['approval'].pk}"}
    menus = {"edit": "Edit and approve…", "always": "Always approve…", "deny": "Deny…"}
    for place, path in places.items():
        for name, summary in menus.items():
            yield Shown(f"open-{place}-{name}", path, site.boss, act=opening(summary))
    yield Shown("open-everywhere-projects", everywhere, site.boss, act=opening("Project: "))
    yield Shown("open-inbox-outcome", f"{inbox}?kind=unknown_outcome", site.boss, act=opening("Mark as done…"))


def _of_settings(site: SampleSite) -> Iterator[Shown]:
    here = f"/p/{site.project.slug}"
    rule = f"{here}/settings/alerts?rule={site.alert_rule.pk}"
    yield Shown("open-alerts", f"{here}/alerts", site.boss, act=opening_all("main details"))
    yield Shown("open-alert-rules", f"{here}/settings/alerts", site.boss, act=opening_all("main details"))
    yield Shown("open-alert-rule", rule, site.boss, act=opening_all("main details"))
    yield Shown("open-redaction-test", f"{here}/settings/redaction", site.boss, act=_mask_text)
    yield Shown("open-member-invited", f"{here}/settings", site.boss, act=_add_a_stranger)
    yield Shown("open-sink-refused", f"{here}/settings/new-sink?kind=http", site.boss, act=_save_a_wrong_sink)
    yield Shown("open-schedule-refused", f"{here}/new-schedule", site.boss, act=_save_a_wrong_schedule)


def _go_to_the_end(page: Page) -> None:
    page.keyboard.press("End")
    expect(page.locator("#replay-scrub")).to_have_value(str(page.locator("#replay-scrub").get_attribute("max")))


def _mask_text(page: Page) -> None:
    page.get_by_label("Text", exact=True).fill(f"pw: {SECRET}")
    page.get_by_role("button", name="Mask text").click()
    expect(page.locator(".settings .payload")).to_contain_text("[REDACTED:billing_password:")


def _add_a_stranger(page: Page) -> None:
    page.get_by_label("Username or e-mail address").fill("nobody@example.org")
    page.get_by_role("button", name="Add or invite").click()
    expect(page.get_by_role("button", name="Withdraw invitation of nobody@example.org")).to_be_visible()


def _save_a_wrong_sink(page: Page) -> None:
    page.get_by_label("Name", exact=True).fill("A!")
    page.get_by_label("URL").fill("http://")
    page.get_by_role("button", name="Create sink").click()
    expect(page.get_by_role("alert")).to_contain_text("Correct 2 errors")


def _save_a_wrong_schedule(page: Page) -> None:
    page.get_by_label("Name", exact=True).fill("Nightly")
    page.get_by_label("Agent or flow").select_option(label="player")
    page.get_by_label("Cron expression").fill("0 25 * * *")
    page.get_by_role("button", name="Save schedule").click()
    expect(page.get_by_label("Cron expression")).to_have_attribute("aria-invalid", "true")
