"""The doorbell on the event loop: wakes whoever waits for a channel, rung in this process or over Redis.

A ring is a hint; one that is lost costs a second,
because the hub looks into the table by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
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
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


class ChannelManager(DefaultChannelManager):  # type: ignore[misc]
    """django-eventstream's own view is not routed; if somebody routes it, it gives away nothing."""

    def can_read_channel(self, user: object, channel: str) -> bool:
        return False

    def is_channel_reliable(self, channel: str) -> bool:
        return False  # nothing is stored: the table is the truth


class Bus:
    """One per event loop. `listen` and `leave` are called on the loop; rings may come from any thread."""

    def __init__(self, woken: Callable[[], None], rights_changed: Callable[[str], None]) -> None:
        #: Called on the loop after each (re)connection to Redis: what was rung before it was not heard.
        self._woken = woken
        #: Called with each user or key that another process rang about.
        self._rights_changed = rights_changed
        self._wanted: Counter[str] = Counter()
        self._pubsub: redis.client.PubSub | None = None
        self._stop = notify.subscribe(_pass_on)
        self._task = asyncio.create_task(self._supervise(settings.REDIS_URL)) if settings.REDIS_URL else None

    async def listen(self, channel: str) -> Listener:
        """A listener whose `aevent` is set by each ring of `channel` from now on."""
        listener = Listener()
        listener.assign_loop()
        listener.channels = {channel}
        get_listener_manager().add_listener(listener)
        self._wanted[channel] += 1
        if self._wanted[channel] == 1 and self._pubsub is not None:
            # A failure here is the connection's, whose supervisor subscribes to everything again.
            with contextlib.suppress(redis.RedisError, OSError):
                await self._pubsub.subscribe(notify.PREFIX + channel)
        return listener

    async def leave(self, listener: Listener) -> None:
        get_listener_manager().remove_listener(listener)
        for channel in listener.channels:
            self._wanted[channel] -= 1
            if not self._wanted[channel]:
                del self._wanted[channel]
                if self._pubsub is not None:
                    with contextlib.suppress(redis.RedisError, OSError):
                        await self._pubsub.unsubscribe(notify.PREFIX + channel)

    async def close(self) -> None:
        self._stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _supervise(self, url: str) -> None:
        """Listen to Redis for ever; while it is away, the hub's polling carries on alone."""
        pause, down = FIRST_PAUSE_S, False
        while True:
            try:
                async with _connected(url) as client, client.pubsub() as pubsub:
                    await self._subscribe(pubsub)
                    pause, down = FIRST_PAUSE_S, False
                    await self._hear(pubsub)
            except Exception as error:  # a supervisor that ended would leave every reader to the slow look
                if not down:
                    log.warning("live: Redis does not answer (%s); looking once a second", type(error).__name__)
                down = True
            finally:
                self._pubsub = None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _subscribe(self, pubsub: redis.client.PubSub) -> None:
        channels = (notify.ACCESS, *self._wanted)
        await pubsub.subscribe(*(notify.PREFIX + channel for channel in channels))
        self._pubsub = pubsub
        self._woken()

    async def _hear(self, pubsub: redis.client.PubSub) -> None:
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
            if message is not None:
                channel, value = message["channel"].decode().removeprefix(notify.PREFIX), message["data"].decode()
                if channel == notify.ACCESS:
                    self._rights_changed(value)
                else:
                    _pass_on(channel, value)


def _connected(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_connect_timeout=2, health_check_interval=5)


def _pass_on(channel: str, value: str) -> None:
    """To the listeners of this process: called for every append in it, so a channel nobody reads costs one look."""
    manager = get_listener_manager()
    if channel not in manager.listeners_by_channel:
        return
    if channel.startswith("project:"):
        send_event(channel, "run", value, json_encode=False)
    else:
        manager.add_to_queues(channel, Event(channel, "grown", value))
