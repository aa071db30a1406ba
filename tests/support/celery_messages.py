"""The messages in a queue of the broker: the in-memory broker, or the Redis of the tests. May import Django."""

from __future__ import annotations

from queue import Empty
from typing import Any

import pytest
import redis
from celery import Celery

from agentops.base.broker import backlog
from agentops.base.redis_config import broker_options
from agentops.celery import app
from runs.lifecycle import wake


def use_broker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process read queues from a Redis, until the test ends."""
    reader = Celery("reader", broker=url)
    reader.conf.broker_transport_options = broker_options(url)
    monkeypatch.setattr(backlog, "import_string", lambda _: reader)


def empty_broker(url: str) -> None:
    """Delete all messages of a Redis, and the upkeep requests that this process has not sent yet."""
    wake.flush_requests()
    with redis.Redis.from_url(url) as client:
        client.flushdb()


def send(url: str, run_id: object, *, queue: str = "default", priority: int = 6) -> None:
    """Send the message of a run to a Redis, as the site writes it."""
    with app.connection_for_write(url) as connection:
        app.send_task("runs.advance", args=[str(run_id)], queue=queue, priority=priority, connection=connection)


def messages(queue: str) -> list[Any]:
    """Take all messages from a queue."""
    taken = []
    with app.connection_for_read() as connection, connection.channel() as channel:
        while True:
            try:
                message = channel.basic_get(queue, no_ack=True)
            except Empty:
                message = None
            if message is None:
                return taken
            taken.append(message)


def task_names(queue: str) -> list[str]:
    """Take all messages from a queue, and return the names of their tasks."""
    return [message.headers["task"] for message in messages(queue)]
