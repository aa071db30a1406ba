"""Test the search page: its states, its links to the timeline, and refused queries."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project, Role
from runs.models import AgentRun
from runs.pages import search_page
from runs.queries.searching import search_results, text_index
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.pages import Element, parse
from tests.support.run_checks import index_all, note

URL = "/p/alpha/search"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def run(project: Project) -> AgentRun:
    return make_run(make_agent(project, slug="reviewer"), "Find the <b>slow</b> query")


@pytest.fixture
def viewer(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.VIEWER))
    return client


def page(client: Client, query: str = "", *, status: int = 200) -> Element:
    answer = client.get(f"{URL}{query}")
    assert answer.status_code == status, answer.content
    return parse(answer.content.decode())


def links(element: Element) -> list[str]:
    return [each.attributes["href"] for each in element.walk() if each.tag == "a"]


def test_a_result_links_to_its_place_in_the_timeline(viewer: Client, run: AgentRun) -> None:
    note(run, "something slow")
    index_all()
    [result] = page(viewer, "?q=SLOW&kind=message").all("result")

    base, message = f"/runs/{run.pk}", run.messages.get()
    assert links(result) == [f"{base}?event=2#target", base, f"{base}/messages/{message.pk}"]
    assert [each.text for each in result.walk() if each.tag == "mark"] == ["slow"]
    assert "Find the <b>slow</b> query" in result.text
    for href in links(result):
        assert viewer.get(href).status_code == 200
    target = parse(viewer.get(f"{base}?event=2").content.decode()).all("is-target")
    assert [each.id for each in target] == ["e2"]
    [event] = page(viewer, "?q=something&order=newest").all("result")
    run.log.refresh_from_db()
    assert links(event)[-1] == f"{base}/events/{run.log.last_seq}"


def test_the_states_of_the_page(viewer: Client, project: Project, run: AgentRun) -> None:
    index_all()
    assert "Search all runs" in page(viewer).text
    assert "Search all runs" in page(viewer, "?q=+").text
    nothing = page(viewer, "?q=nowhere&errors=1&tool=Bash&kind=tool_call&since=2026-01-01T00:00&until=2027-01-01T00:00")
    assert "Nothing found" in nothing.text
    assert f"{'?q=nowhere'}" in links(nothing)
    assert "Nothing found" in page(viewer, '?q="unbalanced').text
    # Opened from a run: the page links back and has no filters for other runs.
    inside = page(viewer, f"?q=slow&run={run.pk}")
    assert "Search in this run" in inside.text
    assert f"/runs/{run.pk}" in links(inside)
    assert inside.find("search-agent") is None
    assert "?q=nowhere" in links(page(viewer, f"?q=nowhere&run={run.pk}"))
    assert f"/p/alpha/search?run={run.pk}" in links(parse(viewer.get(f"/runs/{run.pk}").content.decode()))
    note(run, "new")
    with time_machine.travel(timezone.now() + timedelta(seconds=90), tick=False):
        assert "seconds behind. Texts stored since then are not found yet." in page(viewer, "?q=slow").text


def test_the_link_that_clears_filters_is_updated_with_the_results(viewer: Client, run: AgentRun) -> None:
    """htmx replaces only the results, not the form, so the link in the form is updated separately."""
    without, filtered = page(viewer, "?q=slow"), page(viewer, "?q=slow&errors=1")
    [form] = [each for each in without.walk() if each.attributes.get("hx-target") == "#results"]
    assert form.attributes["hx-select-oob"] == "#search-clear"
    places = [each.find("search-clear") for each in (without, filtered)]
    assert [place and links(place) for place in places] == [[], ["?q=slow"]]
    assert [place and "hidden" in place.attributes for place in places] == [True, False]


def test_results_are_paginated(viewer: Client, run: AgentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_page, "PAGE_SIZE", 2)
    monkeypatch.setattr(search_results, "MAX_RANKED", 4)
    note(run, *(f"needle {number}" for number in range(5)))
    index_all()
    for order, sizes in (("newest", [2, 2, 1]), ("relevance", [2, 2])):
        shown, following = [], f"?q=needle&order={order}"
        while following:
            part = page(viewer, following)
            shown.append(len(part.all("result")))
            following = next(
                (each.attributes["href"] for each in part.walk() if each.attributes.get("rel") == "next"), ""
            )
        assert shown == sizes
        assert ("are ranked" in part.text) == (order == "relevance")
        assert "First page" in part.text
    monkeypatch.setattr(text_index, "BUDGET_S", 0)
    assert len(page(viewer, "?q=needle").all("result")) == 2


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("q=a&after=x", "after is not a position"),
        ("q=a&after=99999999999999999999", "after is not a position"),
        ("q=a&after=1-2", "not one of this search"),
        ("q=a&kind=x", "kind must be one of"),
        ("q=a&status=x", "status must be one of"),
        ("q=a&order=x", "order must be one of"),
        ("q=a&run=x", "run must be a run ID"),
        ("q=a&since=yesterday", "since must be a time"),
        ("q=a&until=2026-02-30T00:00", "until must be a time"),
        (f"q=a&tool={'x' * 300}", "tool can have at most 256"),
        (f"q={'x' * 10_000}", "at most 200 characters, not 10000"),
        ("q=a+b+c+d+e+f+g+h+i+j+k", "at most 10 terms, not 11"),
    ],
)
def test_invalid_queries_are_refused(query: str, said: str, viewer: Client, run: AgentRun) -> None:
    index_all()

    assert said in page(viewer, f"?{query}", status=400).text


def test_a_run_of_another_project_is_not_found(viewer: Client, run: AgentRun) -> None:
    foreign = make_run(make_agent(make_project("beta")), "Find the slow query")
    index_all()

    answers = [viewer.get(f"{URL}?q=slow&run={one}") for one in (foreign.pk, "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert str(foreign.pk) not in viewer.get(f"{URL}?q=slow").content.decode()
    assert viewer.get("/p/beta/search?q=slow").status_code == 404


def test_an_htmx_request_gets_an_error_with_status_200(viewer: Client, run: AgentRun) -> None:
    """htmx swaps only responses with status 200."""
    answer = viewer.get(f"{URL}?q=a+b+c+d+e+f+g+h+i+j+k", headers={"HX-Request": "true"})

    assert answer.status_code == 200
    assert b'role="alert"' in answer.content
