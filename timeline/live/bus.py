"""Delivers change notifications, from this process and from Redis, to listeners on the event loop.

Notifications are hints. A lost one delays a stream by at most one second, because the hub also polls the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections import Counter
from collections.abc import Callable

import redis.asyncio as redis
from django.conf import settings
from django_eventstream import send_event
from django_eventstream.channelmanager import DefaultChannelManager
from django_eventstream.event import Event
from django_eventstream.views import Listener, get_listener_manager

from timeline import notify

log = logging.getLogger(__name__)
#: The first and the longest pause before reconnecting to Redis. The pause doubles each time.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
#: The forms of the values of notifications (timeline.notify), by their channels.
RUN_ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
HOLDER = re.compile(rb"(user|key):[0-9a-f-]{1,36}")
SEQ = re.compile(rb"[0-9]{1,19}")


class ChannelManager(DefaultChannelManager):  # type: ignore[misc]
    """Denies all access through django-eventstream's own view, which is not routed."""

    def can_read_channel(self, user: object, channel: str) -> bool:
        return False

    def is_channel_reliable(self, channel: str) -> bool:
        return False  # events are stored in the database, not by django-eventstream


class Bus:
    """Delivers notifications to the listeners of one event loop.

    Call `listen` and `leave` on that loop. Notifications may come from any thread.
    """

    def __init__(self, on_connected: Callable[[], None], on_rights_changed: Callable[[str], None]) -> None:
        #: Called on the loop after each (re)connection to Redis, because notifications may have been missed.
        self._on_connected = on_connected
        #: Called with the user or API key whose permissions another process changed.
        self._on_rights_changed = on_rights_changed
        self._listener_counts: Counter[str] = Counter()
        self._pubsub: redis.client.PubSub | None = None
        self._unsubscribe = notify.subscribe(_notify_listeners)
        self._task = asyncio.create_task(self._supervise(settings.REDIS_URL)) if settings.REDIS_URL else None

    async def listen(self, channel: str) -> Listener:
        """Return a listener whose `aevent` is set by each notification of `channel`."""
        listener = Listener()
        listener.assign_loop()
        listener.channels = {channel}
        get_listener_manager().add_listener(listener)
        self._listener_counts[channel] += 1
        if self._listener_counts[channel] == 1 and self._pubsub is not None:
            # On a connection error, the supervisor reconnects and subscribes to all channels again.
            with contextlib.suppress(redis.RedisError, OSError):
                await self._pubsub.subscribe(notify.PREFIX + channel)
        return listener

    async def leave(self, listener: Listener) -> None:
        """Remove a listener."""
        get_listener_manager().remove_listener(listener)
        for channel in listener.channels:
            self._listener_counts[channel] -= 1
            if not self._listener_counts[channel]:
                del self._listener_counts[channel]
                if self._pubsub is not None:
                    with contextlib.suppress(redis.RedisError, OSError):
                        await self._pubsub.unsubscribe(notify.PREFIX + channel)

    async def close(self) -> None:
        """Disconnect from Redis and stop all notifications."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _supervise(self, url: str) -> None:
        """Listen to Redis and reconnect as needed. Without a connection, the hub only polls."""
        pause, was_down = FIRST_PAUSE_S, False
        while True:
            try:
                async with _connect(url) as client, client.pubsub() as pubsub:
                    await self._subscribe(pubsub)
                    pause, was_down = FIRST_PAUSE_S, False
                    await self._receive(pubsub)
            except Exception as error:  # if the supervisor ended, streams would depend on polling alone
                if not was_down:
                    log.warning(
                        "live: Redis at REDIS_URL does not answer (%s); polling the database every second",
                        type(error).__name__,
                    )
                was_down = True
            finally:
                self._pubsub = None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _subscribe(self, pubsub: redis.client.PubSub) -> None:
        """Subscribe to the channels of all listeners. Listeners may come and leave while this waits for Redis."""
        subscribed: set[str] = set()
        while (wanted := {notify.ACCESS, *self._listener_counts}) != subscribed:
            if missing := wanted - subscribed:
                await pubsub.subscribe(*(notify.PREFIX + channel for channel in missing))
            if unwanted := subscribed - wanted:
                await pubsub.unsubscribe(*(notify.PREFIX + channel for channel in unwanted))
            subscribed = wanted
        self._pubsub = pubsub  # from here on, `listen` and `leave` subscribe and unsubscribe
        self._on_connected()

    async def _receive(self, pubsub: redis.client.PubSub) -> None:
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
            if message is None:
                continue
            channel = message["channel"].decode().removeprefix(notify.PREFIX)
            value = _validated(channel, message["data"])
            if value is None:
                log.warning("live: dropped a message from Redis that is no notification")
            elif channel == notify.ACCESS:
                self._on_rights_changed(value)
            else:
                _notify_listeners(channel, value)


def _validated(channel: str, data: bytes) -> str | None:
    """Return the value of a notification; None unless it has the form of its channel.

    Redis is not trusted, and browsers receive the values of a project's channel.
    """
    form = HOLDER if channel == notify.ACCESS else RUN_ID if channel.startswith("project:") else SEQ
    return data.decode() if form.fullmatch(data) else None


def _connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_connect_timeout=2, health_check_interval=5)


def _notify_listeners(channel: str, value: str) -> None:
    """Notify the listeners of this process. Each append calls this, so it must be fast for a channel without any."""
    manager = get_listener_manager()
    if channel not in manager.listeners_by_channel:
        return
    if channel.startswith("project:"):
        send_event(channel, "run", value, json_encode=False)
    else:
        manager.add_to_queues(channel, Event(channel, "grown", value))
