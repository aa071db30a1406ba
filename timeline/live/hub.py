"""All streams of this process: admission, topics and periodic maintenance. One hub per event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from uuid import UUID
from weakref import WeakSet

from django.conf import settings
from django.db import Error

from agentops.base.refusals import Refusal
from timeline.live.access_watch import AccessWatch, Permit
from timeline.live.bus import Bus
from timeline.live.client import Client, Feed, LogFeed, ProjectFeed
from timeline.live.log_reader import LogReader
from timeline.live.streams import EventStreamResponse, LogStream, ProjectStream
from timeline.live.topic import LogTopic, ProjectTopic, Topic
from timeline.notify import log_channel, project_channel

log = logging.getLogger(__name__)
#: Seconds between looks for clients that are due or blocked.
TICK_S = 1.0
#: Seconds between polls for events of other processes, with Redis and without it.
POLL_S, POLL_WITHOUT_REDIS_S = 1.0, 0.3
#: Seconds between polls for new runs and runs whose status changed. With Redis, there are no such polls.
POLL_RUNS_S = 0.5
READ_THREADS = 2


class TooMany(Refusal):
    """The limit of streams of the user or of this process is reached."""


#: The hubs of this process, which usually has one.
_hubs: WeakSet[Hub] = WeakSet()


def open_streams() -> int:
    """Return the number of open streams of this process."""
    return sum(len(hub.clients) for hub in list(_hubs))


class Hub:
    """The streams of one event loop."""

    def __init__(self) -> None:
        _hubs.add(self)
        self.clients: dict[Client, asyncio.Task[None]] = {}
        self.is_draining = False
        self._topics: dict[str, Topic] = {}
        self._by_actor: Counter[str] = Counter()
        self._opening = asyncio.Lock()
        self._reader = LogReader(READ_THREADS)
        self._loop = asyncio.get_running_loop()
        self._watch = AccessWatch(self._on_revoked)
        self._bus = Bus(self._wake_all, self._watch.check_holder)
        poll_s = POLL_S if settings.REDIS_URL else POLL_WITHOUT_REDIS_S
        self._clocks = [
            asyncio.create_task(_every(TICK_S, self._tick)),
            asyncio.create_task(_every(poll_s, self._poll_heads)),
        ]
        #: Project → its recent logs at the last poll.
        self._recent: dict[UUID, set[UUID]] = {}
        #: The row ID of the newest event at the last poll.
        self._newest_event: int | None = None
        #: Project → the position of its topic at the last poll.
        self._positions: dict[UUID, int] = {}
        if not settings.REDIS_URL:
            self._clocks.append(asyncio.create_task(_every(POLL_RUNS_S, self._poll_runs)))

    @asynccontextmanager
    async def client(self, stream: EventStreamResponse) -> AsyncIterator[Client]:
        """Register a stream while the context is open. Raises `TooMany`."""
        actor = stream.permit.principal.actor
        self._check_limits(actor)
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
        """End all streams, before the process ends."""
        self.is_draining = True
        for client in self.clients:
            client.is_draining = True
        for topic in self._topics.values():
            topic.wake()

    async def close(self) -> None:
        """End all streams and stop all tasks and threads."""
        self.drain()
        self._watch.close()
        tasks = [*self._clocks, *(t.task for t in self._topics.values() if t.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._bus.close()
        self._reader.close()

    def _check_limits(self, actor: str) -> None:
        if self._by_actor[actor] >= settings.AGENTOPS_STREAMS_PER_USER:
            limit = settings.AGENTOPS_STREAMS_PER_USER
            problem = f"{actor} already has {limit} open streams (AGENTOPS_STREAMS_PER_USER); close one"
            raise TooMany(problem, code="too_many_streams", status=429)
        if self._by_actor.total() >= settings.AGENTOPS_STREAMS:
            problem = f"this server process has {settings.AGENTOPS_STREAMS} open streams (AGENTOPS_STREAMS); try again"
            raise TooMany(problem, code="no_place", status=503)

    async def _feed(self, stream: EventStreamResponse) -> Feed:
        """Return the feed of a stream, and count it as a client of its topic."""
        # Serialised, so that two clients of the same log share one topic.
        async with self._opening:
            if isinstance(stream, ProjectStream):
                project = await self._project_topic(stream.project_id)
                project.clients += 1
                return ProjectFeed(project)
            assert isinstance(stream, LogStream)
            topic = await self._log_topic(stream)
            topic.clients += 1
            return LogFeed(stream, topic, self._reader)

    async def _log_topic(self, stream: LogStream) -> LogTopic:
        log_id, last_seq, incarnation = stream.log_id, stream.last_seq, stream.incarnation
        channel = log_channel(log_id)
        topic = self._topics.get(channel)
        if topic is None:
            # The topic starts at the end of the log as the first client's view saw it, and reads from there.
            listener = await self._bus.listen(channel)
            topic = LogTopic(log_id, last_seq, listener, self._reader, incarnation=incarnation)
            self._start(channel, topic)
            topic.wake_reader()
        assert isinstance(topic, LogTopic)
        if topic.incarnation != incarnation:
            topic.update_head(last_seq, position_at_query=0, incarnation=incarnation)
        return topic

    async def _project_topic(self, project_id: UUID) -> ProjectTopic:
        channel = project_channel(project_id)
        topic = self._topics.get(channel)
        if topic is None:
            topic = ProjectTopic(project_id, await self._bus.listen(channel))
            self._start(channel, topic)
        assert isinstance(topic, ProjectTopic)
        return topic

    def _start(self, channel: str, topic: LogTopic | ProjectTopic) -> None:
        self._topics[channel] = topic
        topic.task = asyncio.create_task(topic.run())

    async def _leave(self, topic: Topic) -> None:
        """Remove a client from its topic, and end the topic after its last client."""
        topic.clients -= 1
        async with self._opening:
            [channel] = topic.listener.channels
            if topic.clients or self._topics.get(channel) is not topic:
                return
            del self._topics[channel]
            if topic.task is not None:
                topic.task.cancel()
            await self._bus.leave(topic.listener)

    def _wake_all(self) -> None:
        """Check all permits and read all topics, because notifications may have been missed."""
        self._watch.check_all()
        for topic in self._topics.values():
            topic.wake_reader()

    def _on_revoked(self, permits: set[Permit]) -> None:
        """Revoke streams. Called on the thread of the access watch."""
        with suppress(RuntimeError):  # the loop has ended, and so have all streams
            self._loop.call_soon_threadsafe(self._revoke, permits)

    def _revoke(self, permits: set[Permit]) -> None:
        """End the streams with these permits."""
        for client in self.clients:
            if client.permit in permits:
                client.revoke()
                client.feed.topic.wake()

    # --- The clocks ------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Wake clients that are due, and disconnect blocked ones."""
        now = time.monotonic()
        for client, task in list(self.clients.items()):
            if client.is_stuck(now) or client.is_lingering(now):
                task.cancel()
        for topic in {client.feed.topic for client in self.clients if client.is_due(now)}:
            topic.wake()

    async def _poll_heads(self) -> None:
        """Poll for new events that no process sent a notification for."""
        positions = {t.log_id: (t, t.position) for t in self._topics.values() if isinstance(t, LogTopic)}
        if not positions:
            return
        incarnation, heads = await self._reader.heads(list(positions))
        for log_id, (topic, position) in positions.items():
            topic.update_head(heads.get(log_id), position_at_query=position, incarnation=incarnation)

    async def _poll_runs(self) -> None:
        """Poll for runs of other processes that are missing in a list, or displayed with an outdated status."""
        topics = {topic.project_id: topic for topic in self._topics.values() if isinstance(topic, ProjectTopic)}
        if topics:
            await self._note_new_logs(topics)
            await self._note_moves(topics)
        else:
            self._recent, self._newest_event, self._positions = {}, None, {}

    async def _note_new_logs(self, topics: dict[UUID, ProjectTopic]) -> None:
        """Notify lists of the runs created since the last poll, except runs already notified."""
        self._recent = {project_id: known for project_id, known in self._recent.items() if project_id in topics}
        projects = await self._reader.new_logs(list(topics))
        for project_id, topic in topics.items():
            ids = {log_id for log_id, project in projects.items() if project == project_id}
            if project_id in self._recent:
                new_ids = [str(log_id) for log_id in sorted(ids - self._recent[project_id])]
                topic.note([run_id for run_id in new_ids if not topic.was_notified(run_id)])
            self._recent[project_id] = ids

    async def _note_moves(self, topics: dict[UUID, ProjectTopic]) -> None:
        """Notify lists of runs whose status changed since the last poll, except runs already notified."""
        self._newest_event, moved = await self._reader.moves(list(topics), self._newest_event)
        for project_id, topic in topics.items():
            notified = set(topic.ids_since(self._positions.get(project_id, topic.position)))
            ids = [str(log_id) for log_id, project in moved.items() if project == project_id]
            topic.note([run_id for run_id in ids if run_id not in notified])
        self._positions = {project_id: topic.position for project_id, topic in topics.items()}


async def _every(seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Call `act` periodically, without end. Errors are only logged."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await act()
        except Error as error:
            # Without the database, streams cannot read events either.
            log.warning("live: the database does not answer (%s); trying again", type(error).__name__)
        except Exception:
            log.exception("live: periodic maintenance of the streams failed; trying again")
