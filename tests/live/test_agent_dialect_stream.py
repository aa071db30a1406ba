"""`?dialect=agent` on the stream: the same events as the event list, next to readers of the log's vocabulary."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from runs.api.event_views import AGENT
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from tests.support.factories import drive, make_project
from tests.support.stream_clients import Follower
from tests.support.timelines import StreamedRun, finish, last_seq
from tests.support.timing import eventually
from timeline import log


def sent_to(reader: Follower) -> list[dict[str, Any]]:
    return [json.loads(message.data or "") for message in reader.events("message")]


def hears_all(reader: Follower, last: int) -> list[dict[str, Any]]:
    return eventually(lambda: (sent := sent_to(reader)) and sent[-1]["seq"] == last and sent, why="events are missing")


@pytest.mark.every_database
def test_the_stream_sends_the_events_of_the_list(streamed: StreamedRun) -> None:
    run = drive(streamed.run)
    sent = hears_all(streamed.open("?dialect=agent"), last_seq(run))

    client = Client()
    client.force_login(streamed.reader)
    url = f"/api/projects/{streamed.project.slug}/agent-runs/{run.pk}/events?dialect=agent&limit=200"
    assert sent[:200] == client.get(url).json()["results"]


def test_both_vocabularies_are_streamed_at_once(streamed: StreamedRun) -> None:
    own, other = streamed.open(), streamed.open("?dialect=agent")
    last = finish(streamed.run)

    for one, told in zip(hears_all(own, last), hears_all(other, last), strict=True):
        assert (one["seq"], one["type"]) == (told["seq"], told["type"])
        assert isinstance(one["ts"], str)
        assert isinstance(told["ts"], int)


@pytest.mark.django_db
def test_a_lost_connection_skips_neither_a_failure_nor_its_error_event() -> None:
    """A client that has received only the first of them reconnects from the event before."""
    failed = {"type": "run.failed", "payload": {"errorType": "no_internet", "error": "reset"}}
    record(Sender(make_project("alpha"), "key:test"), [{"runId": "r", "type": "run.started"}, {"runId": "r", **failed}])
    run = AgentRun.objects.get()

    [*_, last] = AGENT.items(run.pk, list(log.events_of(run.pk).order_by("seq")))
    failure, end = last.frame.decode().rstrip("\n").split("\n\n")
    assert ('"type":"agent:error"' in failure, '"type":"run.failed"' in end) == (True, True)
    assert [f"id: {last.seq}" in message.splitlines() for message in (failure, end)] == [False, True]
