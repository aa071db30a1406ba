"""Test the pages of sinks and of the site's health in a browser, with scripts and without."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from agentops.accounts.models import Project
from runs.models import Delivery, Sink
from tests.support.browser import Tabs
from tests.support.factories import make_agent, make_project, make_run
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import append, export
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
SETTINGS = "/p/alpha/settings"


@pytest.fixture
def project(web: WebThread) -> Project:
    return make_project("alpha")


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_an_admin_creates_a_webhook_tests_it_and_sends_again(
    tabs: Tabs, web: WebThread, project: Project, receiver: Receiver, javascript: bool
) -> None:
    tabs.expect("422")
    page = tabs.open(web.url, User.objects.create_superuser("boss"), javascript=javascript)
    page.goto(f"{SETTINGS}/sinks")
    page.get_by_role("link", name="New sink").first.click()
    page.get_by_role("link", name="webhook").click()
    page.get_by_label("Name").fill("Chat")
    page.get_by_label("URL").fill(receiver.url)
    page.get_by_label("Event types").fill("x.note")
    page.get_by_role("button", name="Create sink").click()
    expect(page.get_by_role("alert")).to_contain_text("Correct 1 error")
    page.get_by_label("Name").fill("chat")
    page.get_by_role("button", name="Create sink").click()
    expect(page.locator("#secret")).to_contain_text("whsec_")
    page.get_by_role("link", name="I have copied it").click()

    page.get_by_role("button", name="Send test").click()
    expect(page.locator("#test")).to_contain_text("Waiting for a worker")
    export()
    if not javascript:
        page.reload()
    expect(page.locator("#test")).to_contain_text("Accepted with status 200")

    receiver.answer(400, body=b"no such room")
    append(make_run(make_agent(project)), "hello")
    export(2)
    page.goto(f"{SETTINGS}/sinks")
    page.get_by_role("link", name="1 dead deliveries of chat").click()
    page.get_by_text("Answer", exact=True).last.click()
    expect(page.get_by_text("no such room")).to_be_visible()
    page.get_by_role("button", name="Send 1 dead delivery again").click()
    expect(page.get_by_text("1 delivery will be sent again")).to_be_visible()
    assert Delivery.objects.get(event_type="x.note").state == "waiting"

    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name="Delete sink").click()
    expect(page.get_by_text("chat deleted.")).to_be_visible()
    assert not Sink.objects.exists()
