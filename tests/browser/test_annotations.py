"""Label, annotate, find, export and share a run in a browser, with scripts and without."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.models import AgentRun, RunNote, SavedView, ShareLink
from tests.support.browser import Tabs
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]

HOSTILE = "<img src=x onerror=alert(1)></bdi><script>alert(1)</script>"


@pytest.fixture
def runs(web: WebThread) -> list[AgentRun]:
    agent = make_agent()
    return [drive(make_run(agent, title=f"Task number {number}")) for number in range(3)]


def add_label(page: Page, label: str) -> None:
    page.locator("summary", has_text="+ Label").click()
    page.get_by_label("Label", exact=True).fill(label)
    page.get_by_role("button", name="Add label").click()


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_a_run_is_labelled_annotated_found_and_shared(
    tabs: Tabs, web: WebThread, runs: list[AgentRun], javascript: bool
) -> None:
    project = runs[0].project
    page = tabs.open(web.url, make_person(project, Role.ADMIN), javascript=javascript)
    page.goto(f"/runs/{runs[1].pk}")
    add_label(page, HOSTILE[:40])
    add_label(page, "nightly")
    expect(page.locator(".label-chip")).to_have_count(2)
    page.locator("summary", has_text="Add a note").click()
    page.get_by_label("Text of the note").fill(HOSTILE)
    page.get_by_role("button", name="Add note").click()
    expect(page.locator(".note-text")).to_have_text(HOSTILE)
    assert RunNote.objects.get().text == HOSTILE

    page.goto(f"/p/{project.slug}/runs")
    page.get_by_role("textbox", name="Label", exact=True).first.fill("nightly")
    page.get_by_role("button", name="Apply filters").click()
    expect(page.locator("tr.run")).to_have_count(1)
    page.get_by_role("link", name="Cost").click()
    expect(page).to_have_url(re.compile("label=nightly&sort=cost"))
    page.locator("summary", has_text="Save view…").click()
    page.get_by_label("Name", exact=True).fill("Nightly")
    page.get_by_role("button", name="Save view").click()
    expect(page.get_by_role("navigation", name="Saved views").get_by_role("link", name="Nightly")).to_have_attribute(
        "aria-current", "page"
    )
    assert SavedView.objects.get().query == "label=nightly&sort=cost"
    page.locator("input[name=id]").check()
    page.locator("summary", has_text="Label…").click()
    page.get_by_label("Label for the selected runs").fill("seen")
    page.get_by_role("button", name="Add label").click()
    expect(page.get_by_text("added to 1 run")).to_be_visible()
    runs[1].refresh_from_db()
    assert runs[1].labels[-1] == "seen"

    page.goto(f"/runs/{runs[1].pk}")
    page.locator("summary", has_text="Export").click()
    page.get_by_role("button", name="Create link").click()
    page.locator("summary", has_text="Export").click()
    url = page.locator(".share-link code").inner_text()
    stranger = tabs.open(web.url)
    stranger.goto(url)
    expect(stranger.get_by_role("heading", name="Task number 1")).to_be_visible()
    expect(stranger.get_by_text(HOSTILE[:40])).to_be_visible()
    expect(stranger.get_by_role("heading", name="Notes")).to_have_count(0)
    assert ShareLink.objects.get().view_count == 1


def test_filters_are_collapsed_on_a_narrow_screen(tabs: Tabs, web: WebThread, runs: list[AgentRun]) -> None:
    project = runs[0].project
    page = tabs.open(web.url, make_person(project, Role.ADMIN), viewport={"width": 320, "height": 640})
    page.goto(f"/p/{project.slug}/runs?sort=cost&reason=&cost_max=5&columns=agent,labels,created,cost")
    expect(page.locator("tr.run").first).to_be_visible()
    # The first screen shows a run.
    box = page.locator("tr.run").first.bounding_box()
    assert box is not None
    assert box["y"] < 640
