"""The in-memory broker: priorities, order, places, and a consumer that waits without polling."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue

from agentops.base import memory_broker, worker_places
from agentops.base.worker_places import Places

Received = list[str]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setattr(memory_broker.MemoryChannel, "queues", {})
    with Connection(transport=memory_broker.MemoryTransport) as connection:
        yield connection


@pytest.fixture
def received(connection: Connection) -> Iterator[Received]:
    texts: Received = []

    def note(body: str, message: Any) -> None:
        message.ack()
        texts.append(body)

    queues = [Queue(name, name, routing_key=name) for name in ("default", "upkeep")]
    with Consumer(connection, queues, callbacks=[note]):
        yield texts


def send(connection: Connection, text: str, *, priority: int = 6, queue: str = "default") -> None:
    with connection.Producer() as producer:
        producer.publish(text, exchange=queue, routing_key=queue, priority=priority)


def drain(connection: Connection, count: int) -> None:
    for _ in range(count):
        connection.drain_events(timeout=10)


def test_messages_arrive_by_priority_then_in_order(connection: Connection, received: Received) -> None:
    for text, priority in (("later", 9), ("first", 6), ("second", 6), ("dead", 0)):
        send(connection, text, priority=priority)

    drain(connection, 4)

    assert received == ["dead", "first", "second", "later"]


def test_message_waits_in_queue_until_a_place_is_free(
    connection: Connection, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting consumer takes the message as soon as a place is free."""
    here = Places(runs=0, upkeep=1)
    monkeypatch.setattr(worker_places, "here", here)
    send(connection, "run"), send(connection, "upkeep", queue="upkeep")
    drain(connection, 1)
    assert received == ["upkeep"]
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0)

    here.watchers.append(memory_broker.notify)
    waiting = threading.Thread(target=drain, args=[connection, 1])
    waiting.start()
    here.runs = 1
    here.announce()
    waiting.join(10)

    assert received == ["upkeep", "run"]


def test_new_message_wakes_the_consumer(connection: Connection, received: Received) -> None:
    waiting = threading.Thread(target=drain, args=[connection, 1])
    waiting.start()
    send(connection, "hello")
    waiting.join(10)
    assert received == ["hello"]


def test_head_of_queue_is_readable(connection: Connection, received: Received) -> None:
    for number in range(5):
        send(connection, str(number))
    send(connection, "urgent", priority=1)
    channel = connection.default_channel

    assert channel.counts("default") == {6: 5, 1: 1}
    assert len(channel.oldest("default", 6, 3)) == 3
    assert channel.oldest("other", 6, 3) == []
    drain(connection, 6)
    assert received == ["urgent", *"01234"]
