"""The messages that wait in a queue of the broker: that in memory, or the Redis of the tests. May import Django."""

from __future__ import annotations

from queue import Empty
from typing import Any

from agentops.celery import app


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
