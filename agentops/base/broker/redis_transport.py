"""Celery's connection to Redis. It checks each message, and reads only from queues for which a place is free."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import Any

from django.conf import settings
from kombu.transport import redis

from agentops.base.broker import places
from agentops.base.broker.messages import checked_command, checked_task
from agentops.base.broker.queues import PRIORITIES

log = logging.getLogger(__name__)
#: Suffix of each worker's remote control queue.
CONTROL = ".celery.pidbox"
#: Prefix of event queues.
EVENTS = "celeryev."
#: Exceptions that kombu raises for a malformed value, not for connection errors.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class RedisChannel(redis.Channel):
    """kombu's channel. It drops malformed values, and reads only from queues for which a place is free."""

    max_priority = max(PRIORITIES)
    priority_steps = list(PRIORITIES)
    #: The queues and priorities of the pending BRPOP.
    _asked: frozenset[tuple[str, int]] = frozenset()
    #: The connection that sends BRPOP, and its ID on the server, or None if the server does not report it.
    _numbered: tuple[Any, int | None] | None = None

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        wanted = places.here.readable(queues)
        if not wanted:
            return
        connection = self.client.connection
        if self._numbered is None or self._numbered[0] is not connection._sock:
            number = self._number_of(connection)
            self._numbered = connection._sock, number
        self._asked, self._in_poll = frozenset(wanted), connection
        self._brpop_sent_at = monotonic()  # type: ignore[assignment]
        command = ["BRPOP", *(self._q_for_pri(*each) for each in wanted), timeout or self.brpop_timeout]  # type: ignore[no-untyped-call]
        connection.send_command(*command)

    @property
    def is_asking(self) -> bool:
        """Whether a BRPOP is waiting for a message."""
        return bool(self._in_poll)

    def _number_of(self, connection: Any) -> int | None:
        connection.send_command("CLIENT", "ID")
        # An account's permissions, or a proxy, may reject the command. Then BRPOP ends by its timeout.
        with suppress(self.ResponseError):
            return int(connection.read_response())
        return None

    def ask_again(self) -> None:
        """End the pending BRPOP if a place became free for messages that it does not wait for."""
        if (
            not self.is_asking
            or self._numbered is None
            or self._numbered[1] is None
            or self._asked.issuperset(places.here.readable(self.active_queues))
        ):
            return
        # Without this command, BRPOP ends by its own timeout, after a second.
        with suppress(self.ResponseError), self.conn_or_acquire() as client:
            client.client_unblock(self._numbered[1])

    def oldest(self, queue: str, priority: int, number: int) -> list[Any]:
        """Return the first messages of a queue and priority without removing them."""
        with self.conn_or_acquire() as client:
            texts = client.lrange(self._q_for_pri(queue, priority), -number, -1)  # type: ignore[no-untyped-call]
        messages = []
        for text in reversed(texts):
            with suppress(ValueError):
                messages.append(json.loads(text))
        return messages

    def counts(self, queue: str) -> dict[int, int]:
        """Return the number of messages of each priority that has any."""
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for priority in PRIORITIES:
                pipe.llen(self._q_for_pri(queue, priority))  # type: ignore[no-untyped-call]
            sizes = pipe.execute()
        return {priority: size for priority, size in zip(PRIORITIES, sizes, strict=True) if size}

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except MALFORMED as error:
            _note_dropped(error)
            raise Empty from None

    def _receive_one(self, connection: Any) -> Any:
        try:
            return super()._receive_one(connection)  # type: ignore[no-untyped-call]
        except MALFORMED as error:
            _note_dropped(error)
            raise Empty from None


class RedisTransport(redis.Transport):
    """kombu's transport, which only passes on checked messages."""

    Channel = RedisChannel

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)  # type: ignore[no-untyped-call]
        loop.on_tick.add(self._ask_again)
        places.use_loop(loop)

    def _ask_again(self) -> None:
        for channel in self.channels:
            channel.ask_again()

    def _deliver(self, message: Any, queue: str) -> None:
        if not _is_for_monitors(queue):
            is_control = queue.endswith(CONTROL)
            if not is_control:
                message = checked_task(message, queue)
            elif not settings.AGENTOPS_CELERY_CONTROL:
                message = checked_command(message)
        super()._deliver(message, queue)  # type: ignore[no-untyped-call]


def _is_for_monitors(queue: str) -> bool:
    """Return whether a queue holds replies to `celery inspect`, or events for a monitor such as Flower.

    No worker reads such replies, and workers ignore the events of others.
    """
    is_worker = places.here.runs is not None
    return queue.endswith(f".reply{CONTROL}") or (queue.startswith(EVENTS) and not is_worker)


def _note_dropped(error: Exception) -> None:
    """Log why a message was dropped, without its content, which may come from an attacker."""
    log.warning("dropped a message from Redis that is not ours (%s)", type(error).__name__)
