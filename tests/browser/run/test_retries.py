"""Test a model call that fails and is retried, as shown live, and a question answered on the page."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from playwright.sync_api import expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from tests.support.browser import Tabs, assert_each_once, live, open_run, status
from tests.support.engine import TOOLS, asks, driven, saying
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.scripted_model import PIECE, PLAYS, Move, Play
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
PATIENCE_S = 60.0


def playing(play: Play) -> AgentRun:
    PLAYS["in-a-browser"] = play
    settings = {"play": "in-a-browser"}
    return make_run(make_agent(provider="scripted", model="scripted-model", settings=settings, tools=TOOLS), "Go.")


def test_each_attempt_is_reported_live(tabs: Tabs, web: WebThread, settings: Any) -> None:
    """Break a stream in the middle: its text is struck through, the next attempt is announced, and the notice then
    goes.
    """
    settings.AGENTOPS_RETRY_BASE_DELAY_MS = 7000
    goes_on = threading.Event()
    tries: list[int] = []

    def play(call: ModelCall) -> Iterable[Move]:
        tries.append(call.number)
        if len(tries) == 1:
            # Enough text that some of it is sent before the break: the newest words are held back to mask secrets.
            yield from [PIECE * 10, 1.5]
            yield ConnectionError("the line went dead")
        yield lambda: goes_on.wait(PATIENCE_S) and None
        yield "A whole thought."

    run = playing(play)
    page = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    open_run(page, run)
    live(page)
    with driven(run):
        banner = page.locator("#head .banner", has_text="Attempt 2 of 4")
        expect(banner).to_contain_text("Attempt 2 of 4 is scheduled")
        expect(banner).to_contain_text("cannot be reached from the worker")
        expect(banner.locator("[data-until]")).to_have_text(re.compile(r"^in [1-4] s$"))  # counts down
        expect(page.locator(".card-assistant.is-abandoned .text")).to_contain_text(PIECE.strip())
        expect(banner).to_contain_text("Attempt 2 of 4 is running")
        # A reader who opens the page now sees the same.
        other = tabs.open(web.url, make_person(run.project, Role.VIEWER))
        open_run(other, run)
        expect(other.locator("#head .banner")).to_contain_text("Attempt 2 of 4 is running")
        goes_on.set()
        expect(page.locator("#timeline")).to_contain_text("A whole thought.")
        expect(banner).to_have_count(0)
    status(page, "completed")
    assert_each_once(page)


@pytest.mark.parametrize("javascript", [True, False], ids=["with scripts", "without"])
def test_a_question_is_answered_on_the_page(tabs: Tabs, web: WebThread, javascript: bool) -> None:
    run = drive(playing(saying([asks("Blue or green?", choices=["blue", "green"])], ["Thanks."])))
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), javascript=javascript)
    open_run(page, run)
    question = page.locator("#needs .question")
    expect(question).to_contain_text("Blue or green?")
    question.get_by_label("Other answer").fill("Neither: take red.")
    question.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("Answer sent. The run continues.")).to_be_visible()
    expect(question).to_have_count(0)

    assert drive(run).state is RunStatus.COMPLETED
    page.reload()
    expect(page.locator("#timeline")).to_contain_text("Neither: take red.")


def test_a_choice_takes_one_click_and_other_readers_see_it(tabs: Tabs, web: WebThread) -> None:
    run = drive(playing(saying([asks("Blue or green?", choices=["blue", "green"])], ["Thanks."])))
    viewer = tabs.open(web.url, make_person(run.project, Role.VIEWER))
    open_run(viewer, run)
    live(viewer)
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR))
    open_run(page, run)
    page.locator("#needs .question").get_by_role("button", name="green").click()

    expect(page.get_by_text("Answer sent. The run continues.")).to_be_visible()
    status(viewer, "queued")
    expect(viewer.locator("#needs .question")).to_have_count(0)
    assert drive(run).state is RunStatus.COMPLETED
    status(viewer, "completed")
