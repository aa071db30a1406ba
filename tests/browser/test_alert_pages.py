"""Test the pages of alerts and alert rules in a browser, with scripts and without."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from agentops.accounts.models import Project
from runs.alerts import evaluation, sending
from runs.models import Alert, AlertMute
from tests.support.browser import Tabs
from tests.support.factories import make_project
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import failed
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
RULES, ALERTS = "/p/alpha/settings/alerts", "/p/alpha/alerts"


@pytest.fixture
def project(web: WebThread) -> Project:
    return make_project("alpha")


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_an_admin_adds_a_rule_tests_it_mutes_its_alert_and_removes_it(
    tabs: Tabs, web: WebThread, project: Project, receiver: Receiver, javascript: bool
) -> None:
    tabs.expect("422")
    page = tabs.open(web.url, User.objects.create_superuser("boss"), javascript=javascript)
    add_rule(page, receiver)

    page.get_by_role("button", name="Send test of rule Broken runs").click()
    expect(page.get_by_text("Test queued.")).to_be_visible()
    receiver.answer(400, body=b"no such room")
    sending.send_due(lambda: False)
    page.reload()
    expect(page.locator(".rule-actions").locator("xpath=..")).to_contain_text("400")
    receiver.answer(200)

    failed(project, "a" * 60)
    evaluation.evaluate()
    page.goto(ALERTS)
    expect(page.locator(".alert-item")).to_contain_text("open")
    page.get_by_text("Mute…").click()
    page.get_by_label("for", exact=True).select_option(label="8 hours")
    page.locator(".alert-item").get_by_role("button", name="Mute:").click()
    expect(page.get_by_role("button", name="End mute of")).to_be_visible()
    assert AlertMute.objects.count() == 1
    page.get_by_role("button", name="End mute of").click()
    expect(page.get_by_role("button", name="End mute of")).to_have_count(0)

    page.goto(RULES)
    expect(page.get_by_text("1 open")).to_be_visible()
    page.get_by_role("button", name="Disable rule Broken runs").click()
    expect(page.get_by_text("Rule disabled.")).to_be_visible()
    page.get_by_label("Remove rule Broken runs", exact=True).click()
    page.get_by_role("button", name="Remove rule Broken runs and its alerts").click()
    expect(page.get_by_text("The project has no alert rules.")).to_be_visible()
    assert not Alert.objects.exists()


def add_rule(page: Page, receiver: Receiver) -> None:
    """Add a rule with its form, first with an invalid limit."""
    page.goto(RULES)
    page.get_by_role("link", name="Run stalled").click()
    page.get_by_label("Name").fill("Broken runs")
    page.get_by_label("Minutes", exact=True).fill("soon")
    page.get_by_role("button", name="Save rule").click()
    expect(page.get_by_text("is not a whole number")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("Broken runs")
    page.get_by_role("link", name="Run failed").click()
    page.get_by_label("Name").fill("Broken runs")
    page.get_by_label("Webhook", exact=True).fill(receiver.url)
    page.get_by_role("button", name="Save rule").click()
    expect(page.get_by_role("status").filter(has_text="whsec_")).to_be_visible()
    page.goto(RULES)
    expect(page.get_by_text("whsec_")).to_have_count(0)
