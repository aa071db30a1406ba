"""Test that form input is restored after an expired session has forced a login."""

from __future__ import annotations

import re
import time

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from agentops.accounts.models import Project, Role
from tests.support.browser import Tabs
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
TEXT = "A long message,\nwith two lines and “quotes”. " * 40
PASSWORD = "quiet-harbour-41-lamp"


@pytest.fixture
def project(web: WebThread) -> Project:
    return make_project("alpha")


def log_in(page: Page, name: str) -> None:
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()


def test_a_message_is_restored_after_the_session_expired(tabs: Tabs, web: WebThread, project: Project) -> None:
    tabs.expect("answered 401|status of 401")
    run, oscar = make_run(make_agent(project)), make_person(project, password=PASSWORD)
    page = tabs.open(web.url, oscar)
    page.goto(f"/runs/{run.pk}")
    page.locator("details[data-key=send] > summary").click()
    page.locator("#send-message").fill(TEXT)
    Session.objects.all().delete()
    page.get_by_role("button", name="Send message").last.click()
    log_in(page, oscar.username)

    expect(page).to_have_url(re.compile(f"/runs/{run.pk}$"))
    expect(page.locator("#send-message")).to_have_value(TEXT)
    expect(page.locator("#send-message")).to_be_visible()
    page.get_by_role("button", name="Send message").last.click()
    expect(page.get_by_role("heading", name="Log in")).to_have_count(0)
    page.reload()
    expect(page.locator("#send-message")).to_have_value("")


def test_a_prompt_is_restored_only_for_its_author(tabs: Tabs, web: WebThread, project: Project) -> None:
    make_agent(project)
    oscar, bob = make_person(project, password=PASSWORD), make_person(project, password=PASSWORD)
    page = tabs.open(web.url, oscar)
    for who, value in ((oscar, TEXT), (bob, "")):
        page.goto("/p/alpha/runs/new")
        page.locator("textarea[name=prompt]").fill(TEXT)
        Session.objects.all().delete()
        page.reload()
        log_in(page, who.username)
        expect(page).to_have_url(re.compile("/p/alpha/runs/new"))
        expect(page.locator("textarea[name=prompt]")).to_have_value(value)


def test_logging_out_deletes_kept_text(tabs: Tabs, web: WebThread, project: Project) -> None:
    make_agent(project)
    oscar = make_person(project, password=PASSWORD)
    page = tabs.open(web.url, oscar)
    page.goto("/p/alpha/runs/new")
    page.locator("textarea[name=prompt]").fill(TEXT)
    page.get_by_label(f"Account: {oscar.username}").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('agentops:unsent')") is None


def test_secrets_are_not_kept(tabs: Tabs, web: WebThread, project: Project) -> None:
    page = tabs.open(web.url, make_person(project, Role.ADMIN, password=PASSWORD))
    for address, fields in (
        ("new-sink?kind=http", {"name": "chat", "headers": "Authorization: Bearer 1234", "url": "https://a.example/b"}),
        ("alerts?kind=run_failed", {"name": "chat", "webhook_url": "https://a.example/b?token=1234"}),
        ("redaction", {"text": "Authorization: Bearer 1234", "token_prefix": "chat"}),
    ):
        page.goto(f"/p/alpha/settings/{address}")
        for name, value in fields.items():
            page.locator(f"[name={name}]:not([type=hidden])").last.fill(value)
        page.goto("/healthz")
        kept = page.evaluate("sessionStorage.getItem('agentops:unsent')")
        assert "chat" in kept, "what is no secret"
        assert not re.search("1234|a.example", kept)


def test_text_is_dropped_after_an_hour(tabs: Tabs, web: WebThread, project: Project) -> None:
    make_agent(project)
    oscar = make_person(project, password=PASSWORD)
    page = tabs.open(web.url, oscar)
    page.goto("/p/alpha/runs/new")
    page.locator("textarea[name=prompt]").fill(TEXT)
    Session.objects.all().delete()
    page.reload()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.clock.set_fixed_time(round((time.time() + 3601) * 1000))
    log_in(page, oscar.username)
    expect(page).to_have_url(re.compile("/p/alpha/runs/new"))
    expect(page.locator("textarea[name=prompt]")).to_have_value("")
