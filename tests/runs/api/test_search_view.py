"""`GET …/search`: results, order, pages, and errors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db.models import F
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project, Role
from runs.lifecycle import inbox
from runs.models import AgentRun, SearchEntry, SearchPosition
from runs.queries.searching import search_results, text_index
from tests.support.api import pages_of
from tests.support.factories import make_agent, make_person, make_project, make_run, with_key
from tests.support.run_checks import index_all, note

URL = "/api/projects/alpha/search"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def run(project: Project) -> AgentRun:
    return make_run(make_agent(project, slug="reviewer"), "Find the slow query")


@pytest.fixture
def client(project: Project) -> Client:
    return Client(headers=with_key(project, "read"))


def results(client: Client, **query: Any) -> list[dict[str, Any]]:
    answer = client.get(URL, query)
    assert answer.status_code == 200, answer.content
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def seqs(client: Client, **query: Any) -> list[int]:
    return [row["seq"] for row in results(client, **query)]


def note_far_away(run: AgentRun, text: str) -> None:
    """Index a text in a later window than the earlier texts."""
    SearchPosition.objects.update(entry_id=F("entry_id") + 5000)
    note(run, text)
    index_all()


def test_a_result_has_its_kind_location_and_matches(client: Client, run: AgentRun) -> None:
    index_all()
    [row] = results(client, q='"slow  QUERY"', kind="message")

    message = run.messages.get()
    assert row | {"at": None} == {
        "kind": "message",
        "run_id": str(run.pk),
        "flow_run_id": None,
        "message_id": str(message.pk),
        "tool_call_id": None,
        "seq": 2,
        "step": 1,
        "name": "user",
        "status": "",
        "is_error": False,
        "at": None,
        "agent_id": "reviewer",
        "run_status": "queued",
        "run_title": run.title,
        "text": "Find the slow query",
        "matches": [[9, 19]],
    }
    assert [row["message_id"] for row in results(client, q="reviewer", kind="event")] == [None]


@pytest.mark.every_database
def test_pages_are_stable_in_both_directions_while_the_index_grows(client: Client, run: AgentRun) -> None:
    for number in range(9):
        note_far_away(run, f"needle {'needle ' * (number % 3)}number {number}")
    whole = {order: seqs(client, q="needle", order=order) for order in ("newest", "relevance")}
    assert whole["newest"] == sorted(whole["newest"], reverse=True)
    assert sorted(whole["relevance"]) == sorted(whole["newest"])
    assert len(whole["newest"]) == 9

    for order, expected in whole.items():
        first = f"{URL}?{urlencode({'q': 'needle', 'order': order, 'limit': 4})}"
        pages = []
        for page in pages_of(client, first):
            pages.append(page)
            note_far_away(run, "a new needle")
        assert [row["seq"] for page in pages for row in page["results"]] == expected
        back = [row["seq"] for row in client.get(pages[-1]["previous"]).json()["results"]]
        assert back == expected[4:8]
        SearchEntry.objects.filter(text__contains="a new needle").delete()


@pytest.mark.every_database
@pytest.mark.parametrize("order", ["newest", "relevance"])
def test_matches_that_are_now_masked_do_not_end_the_pages(client: Client, run: AgentRun, order: str) -> None:
    note(run, *(f"needle number {number}" for number in range(12)))
    index_all()
    # As indexed by an earlier version without these detectors.
    hidden = SearchEntry.objects.filter(text__regex="number (11|10|9|8|4|0)")
    assert hidden.update(text="a ghp_needle0123456789abcdefghijABCDEFGHIJ", folded=None) == 6

    pages = list(pages_of(client, f"{URL}?q=needle&order={order}&limit=2"))

    assert [len(page["results"]) for page in pages if page["results"]] == [2, 2, 2]
    assert {row["text"][-1] for page in pages for row in page["results"]} <= set('}"0123567')
    assert len({row["seq"] for page in pages for row in page["results"]}) == 6
    back = client.get(pages[2]["previous"]).json()["results"]
    assert back == pages[1]["results"]


@pytest.mark.every_database
def test_filters_limit_the_results(client: Client, project: Project, run: AgentRun) -> None:
    other = make_run(make_agent(project, slug="writer"), "A slow writer")
    inbox.stop(other.pk, by="test")
    note(run, "slow and wrong")
    index_all()
    SearchEntry.objects.filter(log=run.pk, name="x.note").update(
        kind="tool_call", name="read_file", status="error", is_error=True, key=str(run.pk)
    )

    everything = seqs(client, q="slow")
    assert len(everything) == 5
    for query, count in (
        ({"run_id": str(run.pk)}, 3),
        ({"run_id": str(other.pk), "kind": "message"}, 1),
        ({"agent_id": "writer"}, 2),
        ({"kind": "message,tool_call"}, 3),
        ({"tool_name": "read_file"}, 1),
        ({"tool_name": "read_fil"}, 0),
        ({"status": "stopped"}, 2),
        ({"status": "queued,stopped"}, 5),
        ({"only": "errors"}, 1),
        ({"after": (timezone.now() + timedelta(minutes=1)).isoformat()}, 0),
        ({"before": (timezone.now() + timedelta(minutes=1)).isoformat()}, 5),
        ({"agent_id": "nobody"}, 0),
        ({"run_id": "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"}, 0),
    ):
        for order in ("newest", "relevance"):
            assert len(seqs(client, q="slow", order=order, **query)) == count, (query, order)


@pytest.mark.every_database
def test_a_slow_search_stops_and_returns_a_cursor(
    client: Client, run: AgentRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_far_away(run, "needle in an old text")
    note_far_away(run, "something new")
    monkeypatch.setattr(text_index, "BUDGET_S", 0)

    pages = list(pages_of(client, f"{URL}?q=needle&order=newest"))

    assert [len(page["results"]) for page in pages][-1] == 1
    assert len(pages) >= 2


@pytest.mark.parametrize(
    ("query", "code", "said"),
    [
        ("", "invalid_filter", "q: this is required: the text to search for"),
        ("q=", "invalid_filter", None),
        ("q=%20%09", "invalid_filter", "q: this must contain a word"),
        ("q=%22%22", "invalid_filter", "q: this must contain a word"),
        (f"q={'x' * 10_000}", "invalid_filter", "q: a search can have at most 200 characters, not 10000"),
        ("q=a+b+c+d+e+f+g+h+i+j+k", "invalid_filter", "q: a search can have at most 10 terms, not 11"),
        ("q=a&order=best", "invalid_filter", None),
        ("q=a&run_id=x", "invalid_filter", None),
        ("q=a&only=good", "invalid_filter", None),
        ("q=a&cursor=abc", "invalid_cursor", None),
        ("q=a&limit=0", "invalid_limit", None),
        ("q=a&nonsense=1", "unknown_parameter", None),
    ],
)
def test_an_invalid_search_is_refused(query: str, code: str, said: str | None, client: Client, run: AgentRun) -> None:
    answer = client.get(f"{URL}?{query}")

    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert said is None or answer.json()["detail"] == said


def test_no_text_causes_an_error(client: Client, run: AgentRun) -> None:
    index_all()

    for text in (
        '"',
        'a"b',
        '"a',
        "%",
        "_",
        "\\",
        "'",
        "\0",
        "失败",
        "🙂",
        "(",
        "*",
        "abc NOT",
        "a AND",
        "-",
        "x" * 200,
    ):
        assert client.get(URL, {"q": text}).status_code == 200, text


def test_a_cursor_is_valid_for_one_search(client: Client, project: Project, run: AgentRun) -> None:
    note(run, "needle 1", "needle 2", "needle 3")
    index_all()
    cursor = client.get(f"{URL}?q=needle&limit=1").json()["next"].partition("cursor=")[2]

    assert client.get(f"{URL}?q=needle&limit=2&cursor={cursor}").status_code == 200
    for other in ("q=needles", "q=needle&order=newest", "q=needle&only=errors"):
        assert client.get(f"{URL}?{other}&cursor={cursor}").json()["code"] == "invalid_cursor"


def test_results_of_another_project_never_appear(client: Client, project: Project, run: AgentRun) -> None:
    other = make_project("beta")
    foreign = make_run(make_agent(other), "Find the slow query")
    note(foreign, "secret plans")
    index_all()

    assert {row["run_id"] for row in results(client, q="slow")} == {str(run.pk)}
    assert results(client, q="slow", run_id=str(foreign.pk)) == []
    assert results(client, q="plans") == []
    for headers in (with_key(other, "read"), with_key(project, "ingest"), {}):
        assert Client(headers=headers).get(f"{URL}?q=slow").status_code in (401, 403, 404)
    viewer = Client()
    viewer.force_login(make_person(other, Role.VIEWER))
    assert viewer.get(f"{URL}?q=slow").status_code == 404
    assert {row["run_id"] for row in viewer.get("/api/projects/beta/search?q=slow").json()["results"]} == {
        str(foreign.pk)
    }


def test_the_number_of_ranked_matches_is_limited(
    client: Client, run: AgentRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_results, "MAX_RANKED", 3)
    note(run, *(f"needle {number}" for number in range(5)))
    index_all()

    assert len(seqs(client, q="needle")) == 3
    assert len(seqs(client, q="needle", order="newest")) == 5
