"""Test open pages whose run is deleted or whose database is restored: they update without action of the reader.

Each test takes ten seconds, because a page does not reload sooner.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from runs.upkeep import restore, retention
from runs.upkeep.retention import RemovalReport
from tests.support.browser import Tabs, assert_each_once, live, open_run
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.timelines import grow, last_seq
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def remove(run: AgentRun) -> None:
    # Set without an event, which would have closed the stream.
    AgentRun.objects.filter(pk=run.pk).update(status="stopped", completed_at=run.created_at)
    for _ in retention.apply(RemovalReport(run.project, 0), by="test"):
        pass


def put_back(run: AgentRun) -> None:
    for _ in restore.fence_off(restore.begin(by="test")):
        pass


@pytest.mark.parametrize("change", [remove, put_back])
def test_an_open_page_updates(tabs: Tabs, web: WebThread, change: Callable[[AgentRun], None]) -> None:
    """The browser receives `stream-reset`, shows that retention removed the texts, and continues."""
    run = make_run(make_agent(make_project("alpha"), slug="player"), "Something to do")
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run)
    live(page)
    change(run)

    if change is remove:
        tabs.expect("410")
        expect(page.locator("h1")).to_have_text("Run deleted by retention", timeout=20_000)
        expect(page.locator("main")).to_contain_text("it ended more than 0 days ago")
        expect(page.locator("main")).not_to_contain_text("Something to do")
        return
    newest = re.compile(rf"{last_seq(run)}\.[0-9]+")
    expect(page.locator("#timeline")).to_have_attribute("data-last", newest, timeout=20_000)
    live(page)
    last = grow(run, 2)
    expect(page.locator("#timeline")).to_have_attribute("data-last", re.compile(rf"{last}\.[0-9]+"))
    assert_each_once(page)
