"""All streams of this process: who is let in, what they follow, and the clock that looks after them.

One per event loop; everything runs on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from uuid import UUID

from django.conf import settings
from django.db import Error

from timeline.access import Permit
from timeline.live.access_watch import AccessWatch
from timeline.live.bus import Bus
from timeline.live.client import Client, Feed, LogFeed, ProjectFeed
from timeline.live.log_reader import Reading
from timeline.live.response import EventStreamResponse, LogStream, ProjectStream
from timeline.live.topic import LogTopic, ProjectTopic, Topic
from timeline.notify import log_channel, project_channel

log = logging.getLogger(__name__)
TICK_S = 1.0
READ_THREADS = 2


class TooMany(Exception):
    """No place for another stream: of this user, or in this process."""

    def __init__(self, text: str, *, code: str, status: int) -> None:
        super().__init__(text)
        self.code, self.status = code, status


class Hub:
    def __init__(self) -> None:
        self.clients: dict[Client, asyncio.Task[None]] = {}
        self.draining = False
        self._topics: dict[str, Topic] = {}
        self._by_actor: Counter[str] = Counter()
        self._opening = asyncio.Lock()
        self._reading = Reading(READ_THREADS)
        self._loop = asyncio.get_running_loop()
        self._watch = AccessWatch(self._on_ended)
        self._bus = Bus(self._knock_everywhere, self._watch.changed)
        self._clock = asyncio.create_task(_every(TICK_S, self._tick))

    @asynccontextmanager
    async def client(self, stream: EventStreamResponse) -> AsyncIterator[Client]:
        """A place for one stream; raises `TooMany` where there is none."""
        actor = stream.permit.principal.actor
        self._require_place(actor)
        self._by_actor[actor] += 1
        try:
            feed = await self._feed(stream)
            client = Client(feed, stream.permit)
            task = asyncio.current_task()
            assert task is not None
            self.clients[client] = task
            self._watch.add(client.permit)
            try:
                yield client
            finally:
                del self.clients[client]
                self._watch.remove(client.permit)
                feed.close()
                await self._leave(feed.topic)
        finally:
            self._by_actor[actor] -= 1
            if not self._by_actor[actor]:
                del self._by_actor[actor]

    def drain(self) -> None:
        """End every stream at once, and let nobody in any more: the process is about to end."""
        self.draining = True
        for client in self.clients:
            client.draining = True
        for topic in self._topics.values():
            topic.wake()

    async def close(self) -> None:
        self.drain()
        self._watch.close()
        tasks = [self._clock, *(t.task for t in self._topics.values() if t.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._bus.close()
        self._reading.close()

    def _require_place(self, actor: str) -> None:
        if self.draining:
            raise TooMany("this server process is ending; try again", code="server_ending", status=503)
        if self._by_actor[actor] >= settings.AGENTOPS_STREAMS_PER_USER:
            limit = settings.AGENTOPS_STREAMS_PER_USER
            raise TooMany(f"{actor} has {limit} streams open already", code="too_many_streams", status=429)
        if self._by_actor.total() >= settings.AGENTOPS_STREAMS:
            raise TooMany("this server process has no place for another stream", code="no_place", status=503)

    async def _feed(self, stream: EventStreamResponse) -> Feed:
        # One at a time: two who come for the same log must find one topic.
        async with self._opening:
            if isinstance(stream, ProjectStream):
                project = await self._project_topic(stream.project_id)
                project.clients += 1
                return ProjectFeed(project)
            assert isinstance(stream, LogStream)
            topic = await self._log_topic(stream)
            topic.clients += 1
            return LogFeed(stream, topic, self._reading)

    async def _log_topic(self, stream: LogStream) -> LogTopic:
        log_id, last_seq, incarnation = stream.log_id, stream.last_seq, stream.incarnation
        channel = log_channel(log_id)
        found = self._topics.get(channel)
        if found is None:
            # It begins where the view that let its first client in saw the log end, and looks from there.
            listener = await self._bus.listen(channel)
            found = LogTopic(log_id, last_seq, listener, self._reading, incarnation=incarnation)
            self._start(channel, found)
            found.knock()
        assert isinstance(found, LogTopic)
        if found.incarnation != incarnation:
            found.found(last_seq, asked_at=0, incarnation=incarnation)
        return found

    async def _project_topic(self, project_id: UUID) -> ProjectTopic:
        channel = project_channel(project_id)
        found = self._topics.get(channel)
        if found is None:
            found = ProjectTopic(await self._bus.listen(channel))
            self._start(channel, found)
        assert isinstance(found, ProjectTopic)
        return found

    def _start(self, channel: str, topic: LogTopic | ProjectTopic) -> None:
        self._topics[channel] = topic
        topic.task = asyncio.create_task(topic.run())

    async def _leave(self, topic: Topic) -> None:
        topic.clients -= 1
        async with self._opening:
            [channel] = topic.listener.channels
            if topic.clients or self._topics.get(channel) is not topic:
                return
            del self._topics[channel]
            if topic.task is not None:
                topic.task.cancel()
            await self._bus.leave(topic.listener)

    def _knock_everywhere(self) -> None:
        self._watch.look()
        for topic in self._topics.values():
            topic.knock()

    def _on_ended(self, permits: set[Permit]) -> None:
        """On the watch's thread."""
        with suppress(RuntimeError):  # the loop has ended, and all streams with it
            self._loop.call_soon_threadsafe(self._revoke, permits)

    def _revoke(self, permits: set[Permit]) -> None:
        """End the streams of those who may not read any more."""
        for client in self.clients:
            if client.permit in permits:
                client.revoke()
                client.feed.topic.wake()

    # --- The clock -------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Find growth that no ring told of, wake who is due, let go who is stuck."""
        now = time.monotonic()
        for client, task in list(self.clients.items()):
            if client.stuck(now) or client.lingers(now):
                task.cancel()
        for topic in {client.feed.topic for client in self.clients if client.due(now)}:
            topic.wake()
        await self._look()

    async def _look(self) -> None:
        asked = {t.log_id: (t, t.position) for t in self._topics.values() if isinstance(t, LogTopic)}
        if not asked:
            return
        incarnation, heads = await self._reading.heads(list(asked))
        for log_id, (topic, position) in asked.items():
            topic.found(heads.get(log_id), asked_at=position, incarnation=incarnation)


async def _every(seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Never stops: a clock that stood still would be seen by nobody, and break what it stands for."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await act()
        except Error as error:
            # Nothing can be read from a database that does not answer, so nothing is given away meanwhile.
            log.warning("live: the database does not answer (%s)", type(error).__name__)
        except Exception:
            log.exception("live: a clock of the streams failed")
