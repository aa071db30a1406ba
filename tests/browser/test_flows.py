"""Test the pages of flows in a browser, with scripts and without."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from agentops.accounts.models import Project, Role
from runs.actions import run_actions
from runs.models import FlowRun
from runs.worker.worker import Worker
from tests.support.browser import Tabs
from tests.support.factories import make_person, make_project
from tests.support.flows import play, run_of
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
REVIEW = {
    "flow_id": "review",
    "title": "Review",
    "inputs": {"type": "object", "properties": {"files": {"type": "array", "examples": [["a.py", "b.py"]]}}},
    "nodes": [
        {"id": "begin", "type": "constant", "value": "x"},
        {"id": "read", "type": "constant", "value": "{{ file }}"},
        {"id": "gate", "type": "human", "question": "Right?", "choices": ["yes", "no"]},
        {
            "id": "end",
            "type": "constant",
            "value": "{{ outputs.gate }}",
            "title": "A title that is longer than its box",
        },
    ],
    "edges": [
        {"from": "begin", "to": "read", "forEach": {"in": "inputs.files", "as": "file"}},
        {"from": "read", "to": "gate"},
        {"from": "gate", "to": "read", "when": "outputs.gate == 'no'", "maxIterations": 2},
        {"from": "gate", "to": "end", "when": "outputs.gate == 'yes'"},
    ],
}


@pytest.fixture
def project(web: WebThread) -> Project:
    return make_project("alpha")


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_a_flow_is_created_started_and_watched(
    tabs: Tabs, web: WebThread, project: Project, worker: Worker, javascript: bool
) -> None:
    tabs.expect("422")
    admin = make_person(project, Role.ADMIN)
    page = tabs.open(web.url, admin, javascript=javascript)
    page.goto("/p/alpha/runs")
    page.get_by_role("navigation", name="Project").get_by_role("link", name="Flows").click()
    page.get_by_role("link", name="New flow").first.click()
    text = page.get_by_role("textbox", name="Definition")
    text.fill(json.dumps({**REVIEW, "edges": [{"from": "begin", "to": "nowhere"}]}))
    if not javascript:
        page.get_by_role("button", name="Create flow").click()
    expect(page.get_by_text("There is no node 'nowhere'.")).to_be_visible()
    text.fill(json.dumps(REVIEW))
    if javascript:
        # The drawing follows the text before it is saved.
        expect(page.get_by_role("listitem", name="Person gate")).to_be_visible()
    page.get_by_role("button", name="Create flow").click()
    expect(page.get_by_text("Version 1 saved.")).to_be_visible()
    page.get_by_role("link", name="Start flow").click()
    page.get_by_role("button", name="Start flow").click()

    flow_run = FlowRun.objects.get()
    expect(page.get_by_role("link", name="Constant begin, pending")).to_be_visible()
    play(flow_run, worker)
    if not javascript:
        page.reload()
    expect(page.get_by_role("link", name="Constant read, done, 2 of 2 items")).to_be_visible()
    expect(page.get_by_text("needs a person")).to_be_visible()
    run_actions.reply("user:oscar", run_of(flow_run, "gate"), "yes")
    play(flow_run, worker)
    if not javascript:
        page.reload()
    expect(page.get_by_role("link", name="A title that is longer", exact=False).first).to_be_visible()
    expect(page.locator("#head .status-completed")).to_be_visible()
    expect(page.locator("#timeline")).to_contain_text("Flow completed")
    page.get_by_role("link", name="State").click()
    expect(page.get_by_role("region", name="Outputs")).to_contain_text('"gate": "yes"')
