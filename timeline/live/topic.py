"""Topics: a log or a project that several clients of this process follow. A log is read once for all its clients.

Everything here runs on the event loop. Database reads run on the threads of `LogReader`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.conf import settings
from django.db import Error
from django_eventstream.views import Listener, get_listener_manager

from timeline.live.log_reader import LogReader
from timeline.live.streams import Item, Rendering

logger = logging.getLogger(__name__)
#: Maximum number and bytes of the events that a track buffers. Clients further behind read from the database.
#: MAX_EVENTS is also the maximum number of run IDs that a project's topic keeps.
MAX_EVENTS, MAX_EVENT_BYTES = 500, 1 << 20
#: The delay before a read is retried after a database error.
PAUSE_S = 1.0


class Topic:
    """The clients that follow the same log or project."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.clients = 0
        self._news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Wait until there may be news. A client that checks for news first misses nothing: all run on one loop."""
        await self._news.wait()

    def wake(self) -> None:
        """Wake all waiting clients."""
        self._news.set()
        self._news.clear()

    def wake_reader(self) -> None:
        """Wake the reader, as a notification does."""
        self.listener.aevent.set()

    async def notifications(self) -> tuple[list[str], bool]:
        """Wait for notifications. Return their values, and whether some were dropped."""
        await self.listener.aevent.wait()
        self.listener.aevent.clear()
        with get_listener_manager().lock:
            values = [event.data for events in self.listener.channel_items.values() for event in events]
            overflow, self.listener.overflow = self.listener.overflow, False
            self.listener.channel_items.clear()
        return values, overflow


@dataclass(eq=False)
class Track:
    """The last events of a log in one rendering: all from `floor` + 1 to the topic's position."""

    rendering: Rendering
    floor: int
    items: deque[Item] = field(default_factory=deque)
    clients: int = 0
    _bytes: int = 0
    #: Cursor → result of `next_frame`. Most clients have the same cursor.
    _frames: dict[int, tuple[bytes, int, bool]] = field(default_factory=dict)

    def extend(self, items: Sequence[Item]) -> None:
        """Add events, and drop the oldest ones beyond the limits."""
        self._frames.clear()
        for item in items:
            self.items.append(item)
            self._bytes += item.size
        while len(self.items) > MAX_EVENTS or (self._bytes > MAX_EVENT_BYTES and len(self.items) > 1):
            removed = self.items.popleft()
            self.floor = removed.seq
            self._bytes -= removed.size

    def restart(self, floor: int) -> None:
        """Drop all events and continue after seq `floor`."""
        self.items.clear()
        self._frames.clear()
        self.floor, self._bytes = floor, 0

    def next_frame(self, cursor: int) -> tuple[bytes, int, bool]:
        """Return the next frame after `cursor`, its last seq, and whether the stream closes after it.

        Without newer events, the frame is empty and the seq is `cursor`. `cursor` must not be below the floor.
        """
        cached = self._frames.get(cursor)
        if cached is None:
            newest = self.items[-1].seq if self.items else self.floor
            # Items are contiguous, so the index of an item is its distance from the floor.
            following = [self.items[i] for i in range(cursor - self.floor, len(self.items))] if cursor < newest else []
            frame, count = self.rendering.frame(following) if following else (b"", 0)
            closes = count > 0 and following[count - 1].closes
            cached = self._frames[cursor] = frame, cursor + count, closes
        return cached


class LogTopic(Topic):
    """A log, with one track for each rendering in use."""

    def __init__(
        self, log_id: UUID, position: int, listener: Listener, reader: LogReader, *, incarnation: int = 0
    ) -> None:
        super().__init__(listener)
        self.log_id = log_id
        #: The incarnation of the database. If it changes, everything that was read is invalid.
        self.incarnation = incarnation
        #: The last seq that was read.
        self.position = position
        #: The number of times the log was reset by a restore. Clients restart when it changes.
        self.rewinds = 0
        self.is_deleted = False
        self.ended = False
        self.tracks: dict[str, Track] = {}
        self._reader = reader

    def follow(self, rendering: Rendering) -> Track:
        """Add a client, and return the track of its rendering."""
        track = self.tracks.setdefault(rendering.name, Track(rendering, self.position))
        track.clients += 1
        return track

    def unfollow(self, track: Track) -> None:
        """Remove a client from its track."""
        track.clients -= 1
        if not track.clients:
            del self.tracks[track.rendering.name]

    async def run(self) -> None:
        """Read new events for all clients. Cancelled when the last client disconnects."""
        while True:
            await self.notifications()
            try:
                while await self._read():
                    pass
            except Error as error:
                logger.warning("live: cannot read a log (%s); trying again", type(error).__name__)
                await asyncio.sleep(PAUSE_S)
                self.wake_reader()
            except Exception:
                # If the reader ended, its clients would receive nothing but heartbeats.
                logger.exception("live: cannot render the events of a log", extra={"run_id": str(self.log_id)})
                await asyncio.sleep(PAUSE_S)

    async def _read(self) -> bool:
        """Read the next events once for all tracks. Return whether there may be more."""
        tracks = list(self.tracks.values())
        after, rewinds = self.position, self.rewinds
        renderings = [track.rendering for track in tracks]
        pages = await self._reader.page(self.log_id, after, renderings, self.incarnation)
        if not pages or not pages[0] or rewinds != self.rewinds:
            return False
        for track, items in zip(tracks, pages, strict=True):
            track.extend(items)
        newest = pages[0]
        self.position = newest[-1].seq
        for track in self.tracks.values():
            if track not in tracks:  # added during the read
                track.restart(self.position)
        self.ended = self.ended or any(item.terminal for item in newest)
        self.wake()
        return len(newest) == settings.SSE_MAX_BUFFER

    def update_head(self, head: int | None, *, position_at_query: int, incarnation: int) -> None:
        """React to the log's last seq in the database: `head`, None if the log was deleted.

        `position_at_query` is the position before the query. A lower head or another incarnation means that the
        database was restored.
        """
        if head is None:
            self.is_deleted = True
            self.wake()
        elif head < position_at_query or incarnation != self.incarnation:
            self.rewinds += 1
            self.incarnation = incarnation
            self.position, self.ended = head, False
            for track in self.tracks.values():
                track.restart(head)
            self.wake()
        elif head > self.position:
            self.wake_reader()


class ProjectTopic(Topic):
    """A project, with the IDs of its runs that were created or changed status, in order."""

    def __init__(self, project_id: UUID, listener: Listener) -> None:
        super().__init__(listener)
        self.project_id = project_id
        #: The number of notifications. An empty ID means that some were dropped and clients must reload.
        self.position = 0
        self._run_ids: deque[str] = deque(maxlen=MAX_EVENTS)

    async def run(self) -> None:
        """Record the notifications of the project."""
        while True:
            values, overflow = await self.notifications()
            self.note([*values, *([""] if overflow else [])])

    def note(self, run_ids: Sequence[str]) -> None:
        """Notify all clients of changed runs."""
        self._run_ids.extend(run_ids)
        self.position += len(run_ids)
        if run_ids:
            self.wake()

    def was_notified(self, run_id: str) -> bool:
        """Return whether a run is among the last notified ones. New runs of this process always are."""
        return run_id in self._run_ids

    def ids_since(self, position: int) -> list[str]:
        """Return the IDs noted since `position` without duplicates, or one empty ID if they are no longer known."""
        missed = self.position - position
        if missed > len(self._run_ids):
            return [""]
        return list(dict.fromkeys(list(self._run_ids)[len(self._run_ids) - missed :]))
