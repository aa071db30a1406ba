"""The Redis broker: a worker requests only messages that have a place, and rejects messages from other programs."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Queue

from agentops.base import worker_places
from agentops.base.redis_broker import RedisTransport
from agentops.base.task_messages import checked_command, checked_task, run_ids_in
from agentops.base.worker_places import Places
from agentops.celery import app
from tests.support.timing import eventually

pytestmark = pytest.mark.redis
RUN, OTHER = "01a221a9-e9a2-7655-a6a5-ad0313581734", "01a221a9-e9a2-7655-a6a5-ad0313581735"
QUEUES = ("default", "upkeep")
#: Timeout in seconds, long enough for a slow machine.
PATIENCE_S = 30.0


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    with Connection(redis_url, transport=RedisTransport) as connection:
        yield connection


@pytest.fixture
def received(connection: Connection) -> Iterator[list[Any]]:
    texts: list[Any] = []

    def note(message: Any) -> None:
        message.ack()
        texts.append(message.headers["argsrepr"])

    queues = [Queue(name, name, routing_key=name) for name in QUEUES]
    with Consumer(connection, queues, on_message=note):
        yield texts


def send(url: str, run_id: str, *, queue: str = "default", priority: int = 6) -> None:
    """Send a message as the site writes it."""
    with app.connection_for_write(url) as connection:
        app.send_task("runs.advance", args=[run_id], queue=queue, priority=priority, connection=connection)


def drain(connection: Connection, count: int = 1) -> None:
    for _ in range(count):
        connection.drain_events(timeout=PATIENCE_S)


def raw_message(url: str, **options: Any) -> dict[str, Any]:
    send(url, RUN, **options)
    with redis.Redis.from_url(url) as client:
        text = client.rpop("default\x06\x166")
    assert isinstance(text, bytes)
    message: dict[str, Any] = json.loads(text)
    return message


def test_priority_comes_before_order_of_arrival(redis_url: str, connection: Connection, received: list[Any]) -> None:
    send(redis_url, RUN, priority=9)
    send(redis_url, OTHER, priority=0)

    drain(connection, 2)

    assert received == [f"('{OTHER}',)", f"('{RUN}',)"]


def test_message_without_a_place_stays_in_redis(
    redis_url: str, connection: Connection, received: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a place becomes free, the worker ends its blocking command and requests messages again."""
    here = Places(runs=0, upkeep=1)
    monkeypatch.setattr(worker_places, "here", here)
    send(redis_url, RUN)
    waiting = threading.Thread(target=drain, args=[connection])
    waiting.start()
    channel = connection.default_channel
    eventually(lambda: channel.has_pending_brpop, why="the worker asks for upkeep")
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen("default\x06\x166") == 1

    here.runs = 1
    channel.renew_brpop()
    waiting.join(PATIENCE_S)

    assert received == [f"('{RUN}',)"]


def test_head_of_queue_is_readable(redis_url: str, connection: Connection) -> None:
    for run_id in (RUN, OTHER):
        send(redis_url, run_id)
    channel = connection.default_channel

    assert [str(run_id) for run_id in run_ids_in(channel.oldest("default", 6, 10))] == [RUN, OTHER]
    assert [str(run_id) for run_id in run_ids_in(channel.oldest("default", 6, 1))] == [RUN]
    assert channel.counts("default") == {6: 2}
    assert channel.oldest("other", 6, 10) == []


def test_checked_message_keeps_its_content(redis_url: str) -> None:
    message = raw_message(redis_url)
    message["headers"] |= {"shadow": "runs.advance researcher", "eta": "2026-11-28T10:00:00+00:00"}

    checked = checked_task(message, "default")

    headers = checked["headers"]
    assert {name: headers[name] for name in ("id", "task", "shadow", "eta")} == {
        name: message["headers"][name] for name in ("id", "task", "shadow", "eta")
    }
    assert checked["properties"]["delivery_info"]["routing_key"] == "default"
    assert checked["properties"]["priority"] == 6
    assert run_ids_in([checked]) == run_ids_in([message])


@pytest.mark.parametrize(
    "headers",
    [
        {"id": "x" * 65},
        {"id": "../x"},
        {"shadow": "runs.advance <script>"},
        {"shadow": 7},
        {"eta": "soon"},
        {"expires": 7},
        {"task": "celery.group"},
        {"task": "os"},
    ],
)
def test_message_with_other_headers_is_refused(redis_url: str, headers: dict[str, Any]) -> None:
    message = raw_message(redis_url)
    message["headers"] |= headers
    with pytest.raises(ValueError, match=next(iter(headers))):
        checked_task(message, "default")


@pytest.mark.parametrize("priority", [-1, 11, "6"])
def test_message_with_another_priority_is_refused(redis_url: str, priority: Any) -> None:
    message = raw_message(redis_url)
    message["properties"]["priority"] = priority
    with pytest.raises(ValueError, match="priority"):
        checked_task(message, "default")


def test_remote_control_may_only_inspect(redis_url: str) -> None:
    with pytest.raises(ValueError, match="properties"):
        checked_command({"body": ""})


def test_foreign_messages_name_no_run() -> None:
    assert run_ids_in([{}, {"body": "x"}, {"body": "W10="}, None, 7]) == []


def test_epochs_after_a_restore_are_accepted(redis_url: str) -> None:
    """Such epochs are seconds since 2020."""
    message = raw_message(redis_url)
    [args, kwargs, rest] = json.loads(base64.b64decode(message["body"]))
    kwargs["epoch"] = 218_000_000
    message["body"] = base64.b64encode(json.dumps([args, kwargs, rest]).encode()).decode()

    body = json.loads(base64.b64decode(checked_task(message, "default")["body"]))

    assert body[1]["epoch"] == 218_000_000
