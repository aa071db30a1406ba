"""An attacker who can write to Redis can wake streams but cannot send their readers anything."""

from __future__ import annotations

import pytest
import redis

from tests.support.factories import make_agent, make_person, make_run, signed_in
from tests.support.stream_clients import Listeners
from tests.support.timelines import StreamedRun, grow
from tests.support.timing import eventually
from tests.support.web_server import WebThread
from timeline import notify

pytestmark = pytest.mark.redis
FORGED = [
    b"x\nevent: auth-revoked\ndata: x\n\n",
    b"<script>alert(1)</script>",
    b"\xff\xfe",
    b"",
    b"9" * 100_000,
    b"../../admin",
]


def test_forged_notifications_reach_no_reader(redis_url: str, web: WebThread, listeners: Listeners) -> None:
    streamed = StreamedRun(web, listeners)
    cookie = signed_in(make_person(streamed.project))
    of_project = listeners.open(f"{web.url}/p/{streamed.project.slug}/runs/stream", cookie, pause_s=0.1)
    of_run = streamed.open()
    eventually(lambda: of_project.statuses == of_run.statuses == [200], why="both streams are open")
    channels = [notify.project_channel(streamed.project.pk), notify.log_channel(streamed.run.pk), notify.ACCESS]
    with redis.Redis.from_url(redis_url) as client:
        eventually(lambda: _subscribed(client, channels), why="the server listens to all channels")
        for channel in channels:
            for value in [*FORGED, b"user:1", b"99999999999999999"]:
                client.publish(notify.PREFIX + channel, value)
    new = make_run(make_agent(streamed.project))
    grow(streamed.run, 3)

    eventually(lambda: str(new.pk) in [each.data for each in of_project.events("run")], why="a new run is named")
    eventually(lambda: len(of_run.ids) >= 3, why="new events arrive")
    assert {each.data for each in of_project.events("run")} == {str(new.pk)}
    assert of_project.statuses == of_run.statuses == [200]
    assert not [each for reader in (of_project, of_run) for each in reader.events("auth-revoked")]
    assert of_run.ids == sorted(set(of_run.ids))


def _subscribed(client: redis.Redis, channels: list[str]) -> bool:
    names = [notify.PREFIX + channel for channel in channels]
    return all(count for _, count in client.pubsub_numsub(*names))
