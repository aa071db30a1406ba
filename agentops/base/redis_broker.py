"""Celery's connection to Redis. It checks each message, and reads only messages for which a place is free."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from time import monotonic
from typing import Any

from django.conf import settings
from kombu.transport import redis

from agentops.base import worker_places
from agentops.base.backing_services import PRIORITIES
from agentops.base.task_messages import checked_command, checked_task

log = logging.getLogger(__name__)
#: Suffix of each worker's remote control queue.
CONTROL = ".celery.pidbox"
#: Prefix of event queues.
EVENTS = "celeryev."
#: Exceptions that kombu raises for a malformed value, but not for a connection error.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class RedisChannel(redis.Channel):
    """kombu's channel. It drops malformed values, and reads only messages for which a place is free."""

    max_priority = max(PRIORITIES)
    priority_steps = list(PRIORITIES)
    #: The queues and priorities of the pending BRPOP, which waits for a message.
    _awaited: frozenset[tuple[str, int]] = frozenset()
    #: The socket of the connection that sends BRPOP, and its ID on the server; None if the server does not report it.
    _client_id: tuple[Any, int | None] | None = None

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Send a BRPOP for all queues and priorities for which a place is free, if any."""
        queues = self._queue_cycle.consume(len(self.active_queues))
        readable = worker_places.here.readable(queues)
        if not readable:
            return
        connection = self.client.connection
        if self._client_id is None or self._client_id[0] is not connection._sock:
            self._client_id = connection._sock, self._read_client_id(connection)
        self._awaited, self._in_poll = frozenset(readable), connection
        self._brpop_sent_at = monotonic()  # type: ignore[assignment]
        command = ["BRPOP", *(self._q_for_pri(*each) for each in readable), timeout or self.brpop_timeout]  # type: ignore[no-untyped-call]
        connection.send_command(*command)

    def _read_client_id(self, connection: Any) -> int | None:
        connection.send_command("CLIENT", "ID")
        # The permissions of the account, or a proxy, may refuse the command.
        with suppress(self.ResponseError):
            return int(connection.read_response())
        return None

    @property
    def has_pending_brpop(self) -> bool:
        return bool(self._in_poll)

    def renew_brpop(self) -> None:
        """End the pending BRPOP if a place has become free for messages that it does not wait for.

        Without the ID of the client, BRPOP ends by its timeout, after a second.
        """
        client_id = self._client_id[1] if self.has_pending_brpop and self._client_id is not None else None
        if client_id is None or self._awaited.issuperset(worker_places.here.readable(self.active_queues)):
            return
        with suppress(self.ResponseError), self.conn_or_acquire() as client:
            client.client_unblock(client_id)

    def oldest(self, queue: str, priority: int, number: int) -> list[Any]:
        """Return the first `number` messages of a queue and priority, without removing them."""
        with self.conn_or_acquire() as client:
            texts = client.lrange(self._q_for_pri(queue, priority), -number, -1)  # type: ignore[no-untyped-call]
        messages = []
        for text in reversed(texts):
            with suppress(ValueError):
                messages.append(json.loads(text))
        return messages

    def counts(self, queue: str) -> dict[int, int]:
        """Return the number of messages by priority, without priorities that have none."""
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for priority in PRIORITIES:
                pipe.llen(self._q_for_pri(queue, priority))  # type: ignore[no-untyped-call]
            sizes = pipe.execute()
        return {priority: size for priority, size in zip(PRIORITIES, sizes, strict=True) if size}

    def _brpop_read(self, **options: Any) -> Any:
        with _dropping_malformed():
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]

    def _receive_one(self, connection: Any) -> Any:
        with _dropping_malformed():
            return super()._receive_one(connection)  # type: ignore[no-untyped-call]


@contextmanager
def _dropping_malformed() -> Iterator[None]:
    """Turn the error about a malformed message into `Empty`, and log it without the content of the message."""
    try:
        yield
    except MALFORMED as error:
        log.warning("dropped a message from Redis that no process of this site sends (%s)", type(error).__name__)
        raise Empty from None


class RedisTransport(redis.Transport):
    """kombu's transport, which delivers only checked messages."""

    Channel = RedisChannel

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)  # type: ignore[no-untyped-call]
        loop.on_tick.add(self._renew_brpops)
        worker_places.use_loop(loop)

    def _renew_brpops(self) -> None:
        for channel in self.channels:
            channel.renew_brpop()

    def _deliver(self, message: Any, queue: str) -> None:
        """Check a message, and deliver it. Raises `ValueError` for one that must not be delivered."""
        if not _is_for_monitors(queue):
            if not queue.endswith(CONTROL):
                message = checked_task(message, queue)
            elif not settings.AGENTOPS_CELERY_CONTROL:
                message = checked_command(message)
        super()._deliver(message, queue)  # type: ignore[no-untyped-call]


def _is_for_monitors(queue: str) -> bool:
    """Return whether a queue has replies to `celery inspect`, or events for a monitor such as Flower.

    These are not checked, because no worker reads such replies, and workers ignore the events of others.
    """
    is_worker = worker_places.here.runs is not None
    return queue.endswith(f".reply{CONTROL}") or (queue.startswith(EVENTS) and not is_worker)
