"""Limits of streams: their number, their lifetime, and the heartbeat of an idle one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from agentops.accounts.models import Role
from tests.support.factories import make_person, signed_in, with_key
from tests.support.stream_clients import Follower, heard
from tests.support.timelines import StreamedRun, grow, last_seq
from tests.support.timing import eventually
from timeline.live import client


def opened(streamed: StreamedRun, count: int, headers: dict[str, str] | None = None) -> list[Follower]:
    streams = [streamed.listeners.open(streamed.url, headers or streamed.cookie) for _ in range(count)]
    eventually(lambda: all(stream.messages for stream in streams), within_s=10, why=f"{count} streams begin")
    assert all(stream.statuses == [200] for stream in streams)
    return streams


def test_the_twenty_first_stream_of_a_person_is_refused(streamed: StreamedRun) -> None:
    streams = opened(streamed, 20)
    refused = streamed.listeners.ask(streamed.url, streamed.cookie)

    assert refused.status == 429
    assert int(refused.headers["retry-after"]) > 0
    assert json.loads(refused.body)["code"] == "too_many_streams"
    # The page's stream counts too; other users and keys have separate limits.
    assert streamed.listeners.ask(streamed.page_url, streamed.cookie).status == 429
    opened(streamed, 1, signed_in(make_person(streamed.project, Role.VIEWER)))
    opened(streamed, 1, with_key(streamed.project))
    # A closed stream frees its place.
    streamed.listeners.call(streams[0].close)
    eventually(lambda: streamed.listeners.ask(streamed.url, streamed.cookie).status == 200, why="a free place")


def test_a_full_process_refuses_readers(streamed: StreamedRun, settings: object) -> None:
    settings.AGENTOPS_STREAMS = 3  # type: ignore[attr-defined]
    streams = opened(streamed, 3)
    refused = streamed.listeners.ask(streamed.url, signed_in(make_person(streamed.project, Role.VIEWER)))

    assert refused.status == 503
    assert int(refused.headers["retry-after"]) > 0
    assert json.loads(refused.body)["code"] == "no_place"
    last = grow(streamed.run)
    for stream in streams:
        heard(stream, [*range(1, last + 1)])


def test_streams_closed_by_readers_no_longer_count(streamed: StreamedRun, settings: object) -> None:
    settings.AGENTOPS_STREAMS_PER_USER = 3  # type: ignore[attr-defined]
    for _ in range(5):
        for stream in opened(streamed, 3):
            streamed.listeners.call(stream.close)
        eventually(lambda: streamed.listeners.ask(streamed.url, streamed.cookie).status == 200, why="a free place")


def test_a_quiet_stream_shows_that_it_lives(streamed: StreamedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.HEARTBEAT_S == 15
    monkeypatch.setattr(client, "HEARTBEAT_S", 0.5)
    stream = streamed.open()
    eventually(lambda: len(stream.comments) >= 2, why="two heartbeats")

    # Heartbeats are not events: they never move a cursor.
    assert {(m.event, m.data, m.id) for m in stream.comments} == {("message", None, None)}
    heard(stream, [*range(1, last_seq(streamed.run) + 1)])


@pytest.mark.slow
def test_a_busy_stream_needs_no_heartbeat(streamed: StreamedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "HEARTBEAT_S", 2)
    stream = streamed.open()
    for _ in range(12):
        last = grow(streamed.run)
        time.sleep(0.25)

    heard(stream, [*range(1, last + 1)])
    assert not stream.comments


@pytest.mark.slow
def test_a_stream_past_its_maximum_age_continues_on_a_new_connection(
    streamed: StreamedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.MAX_AGE_S == 600
    monkeypatch.setattr(client, "MAX_AGE_S", 1)
    stream = streamed.open(pause_s=0.05)
    until = time.monotonic() + 30
    while len(stream.answers) < 3 and time.monotonic() < until:
        last = grow(streamed.run)
        time.sleep(0.1)

    assert len(stream.answers) >= 3
    heard(stream, [*range(1, last + 1)])
    assert not stream.events("end")


def test_maximum_ages_are_spread(streamed: StreamedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers who connected at once must not all reconnect at once."""
    monkeypatch.setattr(client, "MAX_AGE_S", 10_000)
    now = time.monotonic()
    made: Callable[[], float] = lambda: client.Client(None, None).ends_at - now  # type: ignore[arg-type]  # noqa: E731
    ages = [made() for _ in range(50)]

    assert max(ages) - min(ages) > 500
    assert min(ages) > 7_900
    assert max(ages) < 10_100
