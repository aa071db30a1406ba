"""The Redis connection through which the streams of a process receive messages of other processes."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
import redis

from tests.support.timing import eventually
from timeline import notify
from timeline.live.bus import Bus

pytestmark = pytest.mark.redis
#: More turns of the event loop than connecting to Redis takes on this machine.
TURNS = 40


@pytest.mark.parametrize("leaves", [False, True])
def test_listeners_that_subscribe_or_leave_during_connecting_are_handled(redis_url: str, leaves: bool) -> None:
    early, late = notify.log_channel(uuid4()), notify.log_channel(uuid4())
    expected = {late} if leaves else {early, late}

    async def connect(turns: int) -> None:
        """Add one listener and remove the other after `turns` turns of the event loop."""
        connected = asyncio.Event()
        bus = Bus(on_connected=connected.set, on_rights_changed=lambda _: None)
        first = await bus.listen(early)
        for _ in range(turns):
            await asyncio.sleep(0)
        second = await bus.listen(late)
        if leaves:
            await bus.leave(first)
        await asyncio.wait_for(connected.wait(), 30)
        eventually(lambda: _subscribed(redis_url, {early, late}) == expected, why=f"{turns} turns", within_s=10)
        for listener in [second] if leaves else [first, second]:
            await bus.leave(listener)
        await bus.close()

    for turns in range(TURNS):
        asyncio.run(connect(turns))


def _subscribed(url: str, channels: set[str]) -> set[str]:
    with redis.Redis.from_url(url) as client:
        counts = client.pubsub_numsub(*(notify.PREFIX + channel for channel in channels))
        return {name.decode().removeprefix(notify.PREFIX) for name, count in counts if count}
