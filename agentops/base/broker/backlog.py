"""The messages waiting in the broker's queues. If the broker does not respond, its errors are raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.utils.module_loading import import_string

from agentops.base.broker.messages import run_ids_in

#: Loaded on demand: importing Celery takes half a second.
CELERY_APP = "agentops.celery.app"


def oldest(queue: str, priority: int, number: int) -> list[UUID]:
    """Return the run IDs of the first messages of a queue and priority, in order."""
    with _channel() as channel:
        return run_ids_in(channel.oldest(queue, priority, number))


def lengths(queue: str) -> dict[int, int]:
    """Return the number of messages in a queue by priority."""
    with _channel() as channel:
        counts: dict[int, int] = channel.counts(queue)
    return counts


@contextmanager
def _channel() -> Iterator[Any]:
    with import_string(CELERY_APP).pool.acquire(block=True) as connection:
        yield connection.default_channel
