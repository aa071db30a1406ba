"""`…/replay` and `…/snapshot`: each event with the state after it, and the state at one event."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from runs.models import AgentRun
from tests.support.factories import drive, make_agent, make_run, with_key
from tests.support.timelines import grow, stored, told
from timeline import log

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> AgentRun:
    return drive(make_run(make_agent(max_steps=3)))


@pytest.fixture
def ask(run: AgentRun):
    client = Client(headers=with_key(run.project))

    def get(path: str, status: int = 200, **query: Any) -> Any:
        answer = client.get(f"/api/projects/{run.project.slug}/agent-runs/{run.pk}{path}", query)
        assert answer.status_code == status, answer.content
        return answer.json()

    return get


def test_a_replay_returns_the_events_in_order(run: AgentRun, ask) -> None:
    events = ask("/events", limit=200)["results"]
    replayed = ask("/replay", limit=200)

    assert replayed["last_seq"] == len(events)
    assert replayed["next"] is None
    assert [each["seq"] for each in replayed["results"]] == [each["state"]["seq"] for each in replayed["results"]]
    for event, again in zip(events, replayed["results"], strict=True):
        assert {name: again[name] for name in event if name != "ts"} == {n: event[n] for n in event if n != "ts"}


def followed(ask, page: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a page and of all following pages."""
    events = page["results"]
    while page["next"]:
        page = ask("/replay" + page["next"].partition("/replay")[2])
        events += page["results"]
    return events


def test_pages_join_to_the_whole_replay(run: AgentRun, ask) -> None:
    whole = ask("/replay", limit=200)["results"]

    assert followed(ask, ask("/replay", limit=7)) == whole
    parts, page = [], ask("/replay", limit=7)
    while page["next"]:
        parts += page["results"]
        page = ask("/replay", limit=7, afterSeq=parts[-1]["seq"])
    assert parts + page["results"] == whole
    assert ask("/replay", afterSeq=9999) == {"results": [], "last_seq": len(whole), "next": None}


def test_a_later_page_reads_only_its_events(run: AgentRun, ask) -> None:
    """The time to read a log in pages is proportional to its length."""
    first = ask("/replay", limit=7)
    with CaptureQueriesContext(connection) as queries:
        assert [event["seq"] for event in followed(ask, first)] == list(range(1, first["last_seq"] + 1))
    # PostgreSQL shows no text for a statement whose cursor is closed.
    reads = [query["sql"] for query in queries if "agent_run_events" in (query["sql"] or "")]
    assert len(reads) == first["last_seq"] // 7
    assert all(re.search(r'seq"? > ', sql) and " LIMIT 8" in sql for sql in reads), reads


@pytest.mark.breaks_invariants("messages are rolled back in the log alone")
def test_pages_with_a_rollback_have_the_same_states_as_the_whole(run: AgentRun, ask) -> None:
    grow(run, 1)
    told(run, "run.rolled_back", {"positions": [run.messages.count()]})
    told(run, "message.added", {"role": "user", "position": 99})

    assert followed(ask, ask("/replay", limit=3)) == ask("/replay", limit=200)["results"]


@pytest.mark.breaks_invariants("a call is started in the log alone")
def test_a_repeated_start_event_refers_to_the_same_call_on_each_page(run: AgentRun, ask) -> None:
    call = run.tool_calls.latest("pk")
    started = {"call_id": call.call_id, "tool_name": call.tool_name}
    told(run, "tool.start", started, ref_id=call.pk, step=call.step_number)
    for _ in range(3):
        told(run, "tool.start", started, step=call.step_number)
    told(run, "tool.end", {**started, "status": "completed"}, ref_id=call.pk, step=call.step_number)
    told(run, "x.note", {})

    whole = ask("/replay", limit=200)["results"]
    assert [len(event["state"]["open_tool_calls"]) for event in whole[-6:]] == [1, 1, 1, 1, 0, 0]
    for limit in (1, 2, 3):
        assert followed(ask, ask("/replay", limit=limit)) == whole


def test_a_state_of_another_page_or_run_is_refused(run: AgentRun, ask) -> None:
    query = {name: values[0] for name, values in parse_qs(urlsplit(ask("/replay", limit=7)["next"]).query).items()}
    assert ask("/replay", **query)["results"]

    other = Client(headers=with_key(run.project)).get(
        f"/api/projects/{run.project.slug}/agent-runs/{drive(make_run(run.agent)).pk}/replay", query
    )
    assert (other.status_code, other.json()["code"]) == (400, "invalid_cursor")
    for wrong in ({"afterSeq": 8}, {"state": query["state"][:-1] + "~"}, {"state": "é"}, {"state": "x" * 5000}):
        assert ask("/replay", 400, **{**query, **wrong})["code"] == "invalid_cursor"


def test_a_snapshot_is_the_state_after_its_event(run: AgentRun, ask) -> None:
    for again in ask("/replay", limit=200)["results"]:
        snapshot = ask("/snapshot", seq=again["seq"])
        messages = snapshot.pop("messages")
        assert snapshot == again["state"]
        assert len(messages) == snapshot["message_count"]


def test_a_snapshot_without_a_sequence_number_is_the_newest(run: AgentRun, ask) -> None:
    snapshot = ask("/snapshot")

    assert snapshot == ask("/snapshot", seq=len(log.read(run.pk, limit=1000)))
    assert (snapshot["status"], snapshot["status_reason"]) == ("paused", "max_steps")
    first = snapshot["messages"][0]
    assert (first["role"], first["position"], first["rolled_back"]) == ("user", 1, False)
    assert first["preview"]
    assert first["id"] == str(run.messages.order_by("position").first().pk)


@pytest.mark.parametrize("seq", ["0", "-1", "x", "1.0", "9999", str(2**63), ""])
def test_an_invalid_sequence_number_is_refused(ask, seq: str) -> None:
    problem = ask("/snapshot", 400, seq=seq)

    assert problem["code"] == "invalid_seq"
    assert problem["errors"][0]["pointer"] == "?seq"


@pytest.mark.breaks_invariants("an event of a message that has no row")
def test_secrets_are_masked(run: AgentRun, ask) -> None:
    """For an event stored by a version with fewer detectors."""
    secret = "ghp_" + "a1B2" * 9
    stored(run, "message.added", {"role": "user", "preview": f"use {secret}"})
    assert secret not in str(ask("/replay", limit=200))
    assert secret not in str(ask("/snapshot"))
