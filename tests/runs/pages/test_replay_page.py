"""Test the replay page of a run without scripts: links, a form, and the rows and state at an event."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Role
from runs.models import AgentRun
from runs.pages.timeline.window import REPLAY_ROWS
from tests.support.factories import drive, make_agent, make_person, make_run, make_waiting
from tests.support.pages import Element, parse
from tests.support.timelines import grow, stored
from timeline import log
from timeline.events import EventType

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def run() -> AgentRun:
    return drive(make_run(make_agent(max_steps=3)))


def page_of(run: AgentRun, query: str = "", role: Role = Role.VIEWER) -> Element:
    client = Client()
    client.force_login(make_person(run.project, role))
    answer = client.get(f"/runs/{run.pk}/replay{query}")
    assert answer.status_code == 200, answer.content
    return parse(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def row_seqs(page: Element) -> list[int]:
    [pane] = page.all("replay-rows")
    return [int(row.attributes["data-seq"]) for row in pane.walk() if "data-seq" in row.attributes]


def links(page: Element) -> dict[str, str]:
    return {each.words: each.attributes["href"] for each in page.walk() if "data-seek" in each.attributes}


def fact(page: Element, name: str) -> str:
    [dl] = page.all("replay-facts")
    return next(part.elements[1].words for part in dl.elements if part.elements[0].words == name)


def test_the_replay_starts_at_the_first_event(run: AgentRun) -> None:
    page = page_of(run)

    assert row_seqs(page) == [1]
    assert fact(page, "Status") == "queued"
    assert "Read-only: nothing is executed" in page.words
    last = len(log.read(run.pk, limit=1000))
    base = f"/runs/{run.pk}/replay?seq="
    assert links(page) == {"First": f"{base}1", "Previous": f"{base}1", "Next": f"{base}2", "Last": f"{base}{last}"}


@pytest.mark.slow
def test_each_event_has_its_rows_and_its_state(run: AgentRun) -> None:
    events = log.read(run.pk, limit=1000)
    for event in events:
        page = page_of(run, f"?seq={event.seq}")
        assert max(row_seqs(page)) <= event.seq
        open_calls = fact(page, "Open tool calls")
        assert (open_calls != "none") is (event.type == "tool.start"), event.seq
        assert links(page)["Previous"].endswith(f"={max(event.seq - 1, 1)}")
    assert fact(page, "Status").startswith("paused")
    assert fact(page, "Step") == "3"


def test_later_events_do_not_show(run: AgentRun) -> None:
    start = next(event for event in log.read(run.pk, limit=1000) if event.type == "tool.start")
    [card] = page_of(run, f"?seq={start.seq}").all("card-tool")

    assert "is-running" in card.classes
    assert "Output" not in card.words


def test_the_number_of_rows_is_limited_for_long_runs(run: AgentRun) -> None:
    last = grow(run, 400)
    page = page_of(run, f"?seq={last - 5}")

    assert row_seqs(page)[-1] == last - 5
    assert len(row_seqs(page)) == REPLAY_ROWS
    assert "Show older events" in page.words


@pytest.mark.parametrize(("query", "seq"), [("?seq=9999", "last"), ("?seq=0", "1")])
def test_a_missing_event_shows_the_nearest_one(run: AgentRun, query: str, seq: str) -> None:
    last = str(len(log.read(run.pk, limit=1000)))
    page = page_of(run, query)

    assert page.find("replay-seq").attributes["value"] == (last if seq == "last" else seq)
    assert "does not exist. Showing event" in page.words


@pytest.mark.parametrize("seq", ["x", "-1", "1.0", "9" * 19])
def test_an_invalid_number_is_refused(run: AgentRun, seq: str) -> None:
    client = Client()
    client.force_login(make_person(run.project))
    for address in ("replay", "replay/frame"):
        assert client.get(f"/runs/{run.pk}/{address}?seq={seq}").status_code == 400


def test_the_page_has_no_form_that_changes_the_run() -> None:
    run = make_waiting()
    page = page_of(run, "?seq=9999", Role.OPERATOR)
    main = page.find("main")

    assert fact(page, "Open tool calls").endswith("unknown")
    assert {form.attributes.get("method", "get") for form in main.walk() if form.tag == "form"} == {"get"}
    assert "Resolve outcome" not in main.words


@pytest.mark.breaks_invariants("events that no rule of today would let in")
@pytest.mark.parametrize("payload", [{}, {"role": None}, [], "text", {"status": 5, "call_id": [], "reason": {}}])
def test_events_from_older_versions_do_not_break_the_replay(payload: object) -> None:
    run = make_run()
    for type_ in ("message.added", "tool.start", "tool.end", "run.phase", "run.waiting", "llm.turn.end"):
        last = stored(run, type_, payload)
    page = page_of(run, f"?seq={last}")

    assert row_seqs(page)


def test_the_frame_equals_the_content_of_the_page(run: AgentRun) -> None:
    client = Client()
    client.force_login(make_person(run.project))
    frame = client.get(f"/runs/{run.pk}/replay/frame?seq=9").content.decode().strip()

    assert frame in client.get(f"/runs/{run.pk}/replay?seq=9").content.decode()


@pytest.mark.parametrize("event_type", [EventType.TOOL_START, EventType.LLM_TURN_START])
def test_the_duration_of_open_work_ends_at_the_selected_event(run: AgentRun, event_type: str) -> None:
    """This does not depend on the time of the replay."""
    seq = log.events_of(run.pk).filter(type=event_type).values_list("seq", flat=True)[0]
    with time_machine.travel(timezone.now() + timedelta(hours=3)):
        [pane] = page_of(run, f"?seq={seq}").all("replay-rows")

    assert not pane.all("tick")
    assert "3 h" not in pane.words


def test_the_run_page_links_to_the_replay(run: AgentRun) -> None:
    client = Client()
    client.force_login(make_person(run.project))

    assert f'href="/runs/{run.pk}/replay"' in client.get(f"/runs/{run.pk}").content.decode()
