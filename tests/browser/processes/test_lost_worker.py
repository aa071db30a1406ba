"""Kill a worker while a page shows its run: the page reports it and updates the run without a reload."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from agentops.accounts.models import Role
from runs.statuses import RunStatus
from tests.support import scripted_model
from tests.support.browser import Tabs, assert_each_once, live, open_run, status
from tests.support.factories import make_person
from tests.support.stage import Stage
from tests.support.suite_fixtures import MakeWeb
from tests.support.timing import eventually

assert scripted_model.ScriptedProvider is not None
pytestmark = [pytest.mark.browser]
#: Three steps of several seconds each, long enough to lose a worker in one.
CALLS = [["ledger_read"], ["ledger_read"], ["ledger_read"]]
#: The page polls every fifteen seconds; no event reports the death of a worker.
PATIENCE_MS = 40_000


def test_a_page_reports_a_killed_worker_and_the_recovery(tabs: Tabs, stage: Stage, web_process: MakeWeb) -> None:
    run = stage.run(CALLS, chunks=40, pause_s=0.1)
    server = web_process()
    page = tabs.open(server.url, make_person(run.project, Role.VIEWER))
    open_run(page, run)
    live(page)
    page.evaluate("document.body.dataset.same = 'yes'")
    worker = stage.worker()
    status(page, "running", timeout=PATIENCE_MS)
    expect(page.locator(".card-assistant.is-streaming .text")).not_to_be_empty(timeout=PATIENCE_MS)

    worker.signal(Stage.KILL)
    banner = page.locator("#head .banner", has_text="Worker lost")
    expect(banner).to_contain_text("Another worker will continue the run", timeout=PATIENCE_MS)
    stage.worker()
    expect(banner).to_contain_text("Another worker continues the run (recovery 1)", timeout=PATIENCE_MS)
    expect(page.locator(".card-assistant.is-abandoned")).to_be_visible()
    eventually(lambda: stage.reaches(run, RunStatus.COMPLETED), why="the run has ended")
    status(page, "completed", timeout=PATIENCE_MS)

    expect(page.locator("#head .banner", has_text="Worker lost")).to_have_count(0)
    expect(page.locator("#timeline")).to_contain_text("Recovered by another worker")
    assert_each_once(page)
    assert page.evaluate("document.body.dataset.same") == "yes", "the page was loaded anew"
