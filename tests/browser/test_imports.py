"""Test uploads in a browser: files are imported with scripts and without, and the page shows the progress."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import FilePayload, Page, expect

from agentops.accounts.models import Project, Role
from runs.external import import_execution, import_states
from runs.external.import_runs import ImportReport
from runs.external.import_states import ProgressReport
from runs.models import AgentRun
from tests.support.browser import Tabs
from tests.support.factories import make_person, make_project
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
HOSTILE = f"<img src=x onerror=alert(1)>{'long' * 40}.json"


@pytest.fixture
def project(web: WebThread) -> Project:
    return make_project("alpha")


def file(name: str, content: object) -> FilePayload:
    return {"name": name, "mimeType": "application/json", "buffer": json.dumps(content).encode()}


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def upload(page: Page, *files: FilePayload) -> None:
    page.get_by_label("Files", exact=True).set_input_files(list(files))
    page.get_by_role("button", name="Upload files").click()
    expect(page.locator("#messages")).to_contain_text("uploaded")


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_files_are_uploaded_imported_and_link_to_their_runs(
    tabs: Tabs, web: WebThread, project: Project, javascript: bool
) -> None:
    page = tabs.open(web.url, make_person(project, Role.OPERATOR), javascript=javascript)
    page.goto(f"/p/{project.slug}/imports")
    expect(page.get_by_role("heading", name="No imports yet")).to_be_visible()
    upload(page, file("good.json", chat("Hello", "Hi")), file(HOSTILE, {"a": 1}))
    imports = page.locator("li.import")
    expect(imports).to_have_count(2)
    expect(imports.filter(has_text="good.json")).to_contain_text("waiting")

    while import_execution.import_next():
        pass
    if not javascript:
        page.reload()
    good, bad = imports.filter(has_text="good.json"), imports.filter(has_text="onerror")
    expect(good).to_contain_text("1 new run")
    expect(bad).to_contain_text("none of these formats")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator("#imports[hx-get]")).to_have_count(0)
    good.get_by_role("link").click()
    run = AgentRun.objects.get(project=project)
    page.locator(f"#run-{run.pk}").click()
    expect(page).to_have_url(f"{web.url}/runs/{run.pk}")


def test_a_page_follows_an_import(tabs: Tabs, web: WebThread, project: Project) -> None:
    page = tabs.open(web.url, make_person(project, Role.OPERATOR), viewport={"width": 360, "height": 740})
    page.goto(f"/p/{project.slug}/imports")
    upload(page, file("good.json", chat("Hello", "Hi")))
    page.get_by_role("link", name="good.json").click()
    expect(page.locator("#import")).to_contain_text("Waits for a worker")

    taken = import_states.claim_next()
    assert taken is not None
    import_states.update(taken, events=1000)
    ProgressReport(taken.pk).report(ImportReport(events=200, known_events=50))
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "250")
    expect(page.locator("#import")).to_contain_text("250 of 1,000 events")
    import_states.release(taken)
    import_execution.import_next()
    expect(page.locator("#import")).to_contain_text(re.compile(r"done\s+1 new run\s+· 2|done\s+1 new run"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_refused_upload_shows_the_reason(tabs: Tabs, web: WebThread, project: Project) -> None:
    tabs.expect("422")
    page = tabs.open(web.url, make_person(project, Role.OPERATOR))
    page.goto(f"/p/{project.slug}/imports")
    page.get_by_label("Files", exact=True).set_input_files(
        [{"name": "empty.json", "mimeType": "text/plain", "buffer": b""}]
    )
    page.get_by_role("button", name="Upload files").click()
    expect(page.get_by_role("alert")).to_have_text("'empty.json' is empty.")

    viewer = tabs.open(web.url, make_person(project, Role.VIEWER))
    viewer.goto(f"/p/{project.slug}/imports")
    expect(viewer.get_by_label("Files", exact=True)).to_have_count(0)
    viewer.get_by_role("link", name="Events by key").click()
    expect(viewer.get_by_role("heading", name="No ingest keys")).to_be_visible()
