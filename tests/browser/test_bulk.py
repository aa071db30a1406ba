"""Resume many runs of the list in a browser: in a dialog with scripts, on separate pages without."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Project, Role
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.browser import Tabs
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]


@pytest.fixture
def project(web: WebThread) -> Project:
    return make_project("alpha")


@pytest.fixture
def runs(project: Project) -> list[AgentRun]:
    """Create three paused runs and a queued one."""
    agent = make_agent(project)
    made = [make_run(agent, f"Task number {number}") for number in range(4)]
    for run in made[:3]:
        inbox.pause(run.pk, by="test")
    return made


def open_list(tabs: Tabs, web: WebThread, project: Project, role: Role = Role.OPERATOR, **options: object) -> Page:
    page = tabs.open(web.url, make_person(project, role), **options)
    page.goto(f"/p/{project.slug}/runs")
    return page


def pick(page: Page, *runs: AgentRun) -> None:
    for run in runs:
        page.locator(f"#run-{run.pk} .pick input").check()


def test_selected_runs_are_resumed_in_a_dialog(
    tabs: Tabs, web: WebThread, project: Project, runs: list[AgentRun]
) -> None:
    page = open_list(tabs, web, project)
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.get_by_role("button", name="Resume selected…")).to_be_disabled()
    pick(page, runs[0], runs[3])
    page.get_by_role("button", name="Resume 2 selected…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Resume 1 run?")
    expect(dialog).to_contain_text("Only paused runs can be resumed; this one is queued.")
    dialog.get_by_label("Message").fill("Carry on, all of you.")
    dialog.get_by_role("button", name="Resume 1 run").click()
    expect(dialog).to_contain_text("Resumed 1 run")

    new = AgentRun.objects.get(resumed_from=runs[0])
    assert new.prompt == "Carry on, all of you."
    expect(dialog.get_by_role("link", name="Task number 0")).to_have_attribute("href", f"/runs/{new.pk}")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    # The list has been updated, and the selection is empty.
    expect(page.locator(f"#run-{runs[0].pk} .status")).to_have_text("resumed")
    expect(page.get_by_role("button", name="Resume selected…")).to_be_disabled()


def test_a_row_that_changes_stays_selected(tabs: Tabs, web: WebThread, project: Project, runs: list[AgentRun]) -> None:
    page = open_list(tabs, web, project)
    expect(page.locator("#connection")).to_have_text("Live")
    page.get_by_label("Select all runs on this page").check()
    expect(page.get_by_role("button", name="Resume 4 selected…")).to_be_enabled()
    inbox.pause(runs[3].pk, by="test")
    expect(page.locator(f"#run-{runs[3].pk} .status")).to_have_text("paused")

    expect(page.locator(f"#run-{runs[3].pk} .pick input")).to_be_checked()
    page.get_by_role("button", name="Resume 4 selected…").click()
    expect(page.get_by_role("dialog")).to_contain_text("Resume 4 runs?")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    # Closing the dialog keeps the selection.
    expect(page.get_by_role("button", name="Resume 4 selected…")).to_be_enabled()


def test_enter_in_the_label_field_adds_the_label(
    tabs: Tabs, web: WebThread, project: Project, runs: list[AgentRun]
) -> None:
    page = open_list(tabs, web, project)
    pick(page, runs[0])
    page.get_by_text("Label…").click()
    page.get_by_label("Label for the selected runs").fill("nightly")
    page.keyboard.press("Enter")

    expect(page.locator(f"#run-{runs[0].pk}")).to_contain_text("nightly")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_double_click_resumes_once(tabs: Tabs, web: WebThread, project: Project, runs: list[AgentRun]) -> None:
    page = open_list(tabs, web, project)
    pick(page, *runs[:3])
    page.get_by_role("button", name="Resume 3 selected…").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume 3 runs").dblclick()
    expect(page.get_by_role("dialog").locator("[data-done]")).to_be_visible()

    assert AgentRun.objects.filter(resumed_from__isnull=False).count() == 3


def test_an_admin_may_include_active_runs(tabs: Tabs, web: WebThread, project: Project, runs: list[AgentRun]) -> None:
    page = open_list(tabs, web, project, Role.ADMIN)
    pick(page, runs[0], runs[3])
    page.get_by_role("button", name="Resume 2 selected…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Include 1 active run…").click()
    expect(dialog).to_contain_text("Stops the worker of 1 active run")
    dialog.get_by_role("button", name="Resume 2 runs").click()
    expect(dialog).to_contain_text("Resumed 2 runs")

    assert AgentRun.objects.get(pk=runs[3].pk).state is RunStatus.RESUMED


#: Presses the last button of new dialog content before the browser does anything else.
PRESS_AT_ONCE = """
() => new MutationObserver((changes, observer) => {
  observer.disconnect();
  [...document.querySelectorAll("#bulk-body button")].at(-1).click();
}).observe(document.getElementById("bulk-body"), { childList: true })
"""


def test_a_form_submitted_right_after_it_loads_stays_in_the_dialog(
    tabs: Tabs, web: WebThread, project: Project, runs: list[AgentRun]
) -> None:
    page = open_list(tabs, web, project)
    pick(page, runs[0])
    page.evaluate(PRESS_AT_ONCE)
    page.get_by_role("button", name="Resume 1 selected…").click()
    expect(page.get_by_role("dialog")).to_contain_text("Resumed 1 run")


def test_bulk_resume_works_without_scripts(tabs: Tabs, web: WebThread, project: Project, runs: list[AgentRun]) -> None:
    page = open_list(tabs, web, project, Role.ADMIN, javascript=False)
    page.get_by_role("button", name="Resume all matching paused runs…").click()
    expect(page.locator("main")).to_contain_text("Resume 3 runs?")
    page.get_by_role("button", name="Resume 3 runs").click()
    expect(page.locator("main")).to_contain_text("Resumed 3 runs")
    page.get_by_role("link", name="Task number 1").click()
    expect(page.locator("h1")).to_have_text("Task number 1")

    assert AgentRun.objects.filter(resumed_from__isnull=False).count() == 3
    page.goto(f"/p/{project.slug}/runs")
    pick(page, runs[3])
    page.get_by_role("button", name="Resume selected…").click()
    expect(page.locator("main")).to_contain_text("Resume 0 runs?")


def test_bulk_resume_works_by_keyboard(tabs: Tabs, web: WebThread, project: Project, runs: list[AgentRun]) -> None:
    page = open_list(tabs, web, project)
    page.locator(f"#run-{runs[1].pk} .pick input").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Resume 1 selected…").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Resume 1 run?")
    page.get_by_role("dialog").get_by_role("button", name="Resume 1 run").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Resumed 1 run")

    assert AgentRun.objects.filter(resumed_from=runs[1]).exists()
