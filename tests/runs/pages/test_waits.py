"""Test waits on a run's page: for an answer, a policy or the next attempt, with the form that ends the wait."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Role
from runs.lifecycle import suspects, transitions
from runs.models import AgentRun, RunCommand
from runs.pages.timeline import live_cards
from runs.providers import retries
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.engine import TOOLS, asks, http, saying, with_policies
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.pages import Element, ParsedPage, parse
from tests.support.scripted_model import PLAYS, Move, Play
from timeline import log

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
HOSTILE = "<script>alert(1)</script>\n{{ 7|add:7 }}"
SECRET = "sk-ant-api03-" + "Ab1" * 30


def playing(play: Play, **agent: Any) -> AgentRun:
    PLAYS["of-the-page"] = play
    settings = {"play": "of-the-page"}
    made = make_agent(provider="scripted", model="scripted-model", settings=settings, tools=TOOLS, **agent)
    return make_run(made, "Go.")


def client_of(run: AgentRun, role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(make_person(run.project, role))
    return client


def page_of(answer: Any) -> ParsedPage:
    assert answer.status_code == 200
    return ParsedPage(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def head(client: Client, run: AgentRun) -> Element:
    """Return the separate head: its banners, and the waits that the page has at the end of its timeline."""
    answer = client.get(f"/runs/{run.pk}/head")
    assert answer.status_code == 200
    return parse(answer.content.decode())


def banners(run: AgentRun, client: Client | None = None) -> list[str]:
    return [banner.words for banner in head(client or client_of(run), run).all("banner")]


def is_counting(banner: Element) -> list[str]:
    return [str(tick.children[0]) for tick in banner.all("tick")]


def fields(element: Element, name: str) -> list[str]:
    return [each.attributes.get("value", "") for each in element.walk() if each.attributes.get("name") == name]


def queries(client: Client, run: AgentRun) -> int:
    with CaptureQueriesContext(connection) as asked:
        assert client.get(f"/runs/{run.pk}").status_code == 200
    return len(asked)


# --- Questions ----------------------------------------------------------------------------------------------------


def test_a_question_is_displayed_with_its_choices_and_a_form() -> None:
    run = drive(playing(saying([asks("Blue or green?\nPlease say.", choices=["blue", "green"])], ["Thanks."])))
    client = client_of(run)
    [banner] = head(client, run).all("banner")

    assert "The agent asks a question" in banner.words
    assert banner.all("question-text")[0].text.strip() == "Blue or green?\nPlease say."
    assert fields(banner, "message") == ["blue", "green", ""]
    answer = client.post(f"/runs/{run.pk}/answer", {"message": "green", "key": fields(banner, "key")[0]})

    assert answer.status_code == 303
    assert [str(each) for each in get_messages(answer.wsgi_request)] == ["Answer sent. The run continues."]
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.QUEUED
    assert drive(run).state is RunStatus.COMPLETED
    assert "The agent asks a question" not in head(client, run).words


def test_a_second_answer_becomes_a_message() -> None:
    run = drive(playing(saying([asks("Which?")], ["Thanks."])))
    client = client_of(run)
    keys = fields(head(client, run), "key")
    client.post(f"/runs/{run.pk}/answer", {"message": "This one.", "key": keys[0]})
    again = client.post(f"/runs/{run.pk}/answer", {"message": "This one.", "key": keys[0]})
    late = client.post(f"/runs/{run.pk}/answer", {"message": "No, that one."})

    assert again.status_code == late.status_code == 303
    assert RunCommand.objects.filter(run=run).count() == 2
    assert "The question was already answered" in str(list(get_messages(late.wsgi_request))[-1])


def test_an_empty_answer_is_refused() -> None:
    run = drive(playing(saying([asks("Which?")], ["Thanks."])))
    answer = client_of(run).post(f"/runs/{run.pk}/answer", {"message": "  "})

    assert str(list(get_messages(answer.wsgi_request))[-1]).startswith("Not answered")
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.WAITING


def test_a_viewer_sees_the_question_without_a_form() -> None:
    run = drive(playing(saying([asks("Which?", choices=["a"])], ["Thanks."])))
    [banner] = head(client_of(run, Role.VIEWER), run).all("banner")

    assert "Which?" in banner.words
    assert "Requires the role operator or admin." in banner.words
    assert fields(banner, "message") == []


def test_questions_are_text_without_secrets() -> None:
    question = f"{HOSTILE} {SECRET}"
    run = drive(playing(saying([asks(question, choices=[HOSTILE, "x" * 500])], ["Thanks."])))
    html = client_of(run).get(f"/runs/{run.pk}").content.decode()

    assert "<script>alert(1)" not in html
    assert SECRET not in html
    assert "{{ 7|add:7 }}" in html
    [banner] = head(client_of(run), run).all("banner")
    assert "x" * 400 not in banner.words


# --- Policies -------------------------------------------------------------------------------------------------------


def test_a_wait_of_a_policy_shows_its_time_and_attempt(settings: Any) -> None:
    settings.AGENTOPS_MAX_RETRIES = 0
    policy = {"match": ["rate_limited"], "action": "resume", "cooldown": "60s", "attempts": 2}
    run = drive(with_policies(playing(saying([http(429, "slow down please")])), on_error=[policy]))
    [banner] = head(client_of(run), run).all("banner")

    assert banner.words.startswith("Error: a policy resumes the run at 20")
    assert is_counting(banner)[0].startswith("in ")
    assert "This is attempt 1 of 2." in banner.words
    assert "slow down please" in banner.words
    [row] = [words for words in rows(run) if "the policy resumes the run" in words]
    assert "(rate limited)" in row


def test_an_escalated_run_shows_the_reason(settings: Any) -> None:
    settings.AGENTOPS_MAX_RETRIES = 0
    run = drive(with_policies(playing(saying([http(401, "no such key")])), on_error={"action": "escalate"}))
    [banner] = banners(run)

    assert run.state is RunStatus.PAUSED
    assert banner.startswith("Escalated by policy on_error")
    assert "A decision is required" in banner
    client = client_of(run)
    html = client.get(f"/p/{run.project.slug}/notifications").content.decode()
    assert f'href="/runs/{run.pk}"' in html
    assert "Needs you: 1" in client.get(f"/runs/{run.pk}").content.decode()
    assert "Needs you: 1" in client.get(f"/runs/{run.pk}/head").content.decode()


def rows(run: AgentRun) -> list[str]:
    return [row.words for row in page_of(client_of(run).get(f"/runs/{run.pk}")).rows]


# --- Retries ------------------------------------------------------------------------------------------------------


def looking(run: AgentRun, client: Client, seen: list[list[str]]) -> Callable[[], None]:
    """Return a move of a play that reads the page's banners in another thread."""

    def look() -> None:
        def work() -> None:
            try:
                seen.append(banners(run, client))
            finally:
                connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)

    return look


def test_a_running_retry_is_reported_until_the_model_has_answered(settings: Any) -> None:
    settings.AGENTOPS_RETRY_BASE_DELAY_MS = 10
    seen: list[list[str]] = []
    looks: list[Callable[[], None]] = []
    tries: list[int] = []

    def play(call: ModelCall) -> Iterable[Move]:
        tries.append(call.number)
        if len(tries) == 1:
            yield "Half a th"
            yield 0.5
            yield ConnectionError("the line went dead")
        yield looks[0]
        yield "A whole thought."

    run = playing(play)
    client = client_of(run)
    looks.append(looking(run, client, seen))
    drive(run)

    [[banner]] = seen
    assert banner.startswith("Attempt 2 of 4 is running")
    assert "Attempt 1 of 4 of the model call failed: provider not reachable." in banner
    assert "The model provider cannot be reached from the worker." in banner
    assert banners(run, client) == []
    page = "\n".join(rows(run))
    assert "abandoned: provider not reachable" in page
    assert "attempt 2" in page


def test_the_next_attempt_is_announced_with_its_time(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """The worker sleeps until then."""
    settings.AGENTOPS_RETRY_BASE_DELAY_MS = 600_000
    monkeypatch.setattr(retries, "HOLD_WORKER_S", 3600.0)
    run = playing(saying([ConnectionError("the line went dead")], ["Back again."]))
    worker = Worker()

    def work() -> None:
        try:
            worker.drive(run.pk)
        finally:
            connections.close_all()

    driver = threading.Thread(target=work)
    driver.start()
    try:
        waited = threading.Event()
        while not log.events_of(run.pk).filter(type="retry.scheduled").exists():
            assert driver.is_alive()
            waited.wait(0.05)
        [banner] = head(client_of(run), run).all("banner")
    finally:
        worker.shutdown.request(0)
        driver.join(60)
        worker.close(5)

    assert banner.words.startswith("Attempt 2 of 4 is scheduled at 20")
    assert is_counting(banner)[0].startswith("in ")
    assert "The model provider cannot be reached from the worker." in banner.words


def test_a_long_wait_shows_the_next_attempt_and_the_reason() -> None:
    run = drive(playing(saying([http(429, "slow down please", **{"retry-after": "300"})])))
    [banner] = head(client_of(run), run).all("banner")

    assert (run.state, run.status_reason) == (RunStatus.WAITING, "cooldown")
    assert banner.words.startswith("The model provider limits the rate of requests")
    assert "next attempt at 20" in banner.words
    assert is_counting(banner)[1].startswith(("in 4 min", "in 5 min"))
    assert "Attempt 1 of 4 of the model call failed: rate limited." in banner.words
    assert "slow down please" in banner.words


def test_the_end_of_an_outage_has_a_date(settings: Any) -> None:
    """It may be after midnight, or days ahead."""
    settings.AGENTOPS_MAX_RETRIES, settings.AGENTOPS_OUTAGE_S = 0, 2 * 86_400
    run = drive(playing(saying([http(429, "slow down please", **{"retry-after": "300"})])))
    [banner] = head(client_of(run), run).all("banner")

    assert (run.state, run.status_reason) == (RunStatus.WAITING, "cooldown")
    assert re.search(r"not available by 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, the run pauses", banner.words)


def test_open_pages_reload_the_head_for_each_attempt(settings: Any) -> None:
    """The head is reloaded when an attempt is announced, starts and ends, but not for other model calls."""
    settings.AGENTOPS_RETRY_BASE_DELAY_MS = 10
    run = drive(playing(saying(["One. ", asks()], [ConnectionError("gone")], ["Two."])))
    client_of(run).post(f"/runs/{run.pk}/answer", {"message": "Go on."})
    drive(run)
    events = log.read(run.pk)
    pieces = live_cards.render(run.pk, events)
    told = [event.type for event, piece in zip(events, pieces, strict=True) if "status" in piece]

    assert [each for each in told if not each.startswith(("run.", "command."))] == [
        "retry.scheduled",
        "llm.turn.start",
        "llm.turn.end",
    ]


def test_the_query_count_of_a_wait_is_limited() -> None:
    """A question needs one query more than other waits, regardless of its content."""
    run = drive(playing(saying([asks("Which?", choices=["a"] * 5)], ["Thanks."])))

    assert queries(client_of(run), run) <= 25


# --- After the death of a worker --------------------------------------------------------------------------------------


def test_a_suspected_run_shows_that_it_is_retried_alone() -> None:
    """It waits for its next attempt, is queued for it, and finally is paused with instructions."""
    run = make_run()
    assert transitions.claim(run.pk, "dead")
    assert transitions.expire_leases("dead")
    assert suspects.set_aside(run.pk, "sweeper", wait_s=30)
    for end_waits in (lambda: 0, transitions.end_waits):
        AgentRun.objects.filter(pk=run.pk).update(not_before=Now() - timedelta(seconds=1))
        end_waits()
        [banner] = banners(run)
        assert banner.startswith("Being retried alone after a worker died")
    for _ in range(3):
        assert transitions.claim(run.pk, "alone", careful=False)
        assert suspects.note_death_alone("alone")

    [banner] = banners(drive(run))

    assert banner.startswith("Paused")
    assert "The worker died each time this step ran alone." in banner
