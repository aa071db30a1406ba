"""What several clients of this process follow together: a log, read once for all of them, or a project's runs.

Everything here runs on the event loop; what touches the
database is handed to `Reading`'s threads (reading.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.db import Error
from django_eventstream.views import Listener, get_listener_manager

from timeline.live.log_reader import PAGE, Reading
from timeline.live.rendering import Item, Rendering

logger = logging.getLogger(__name__)
#: What a topic keeps in memory for its clients; who is further behind reads the table again.
KEPT, KEPT_BYTES = 500, 1 << 20
#: A database that failed is asked again after this long.
PAUSE_S = 1.0


class Topic:
    """Clients that wait for the same thing."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.clients = 0
        self._news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Until there may be something to do. Nothing is missed by whoever looks before it waits: all is one loop."""
        await self._news.wait()

    def wake(self) -> None:
        """Everyone who waits now looks again."""
        self._news.set()
        self._news.clear()

    def knock(self) -> None:
        """As if the doorbell had been rung."""
        self.listener.aevent.set()

    async def rung(self) -> tuple[list[str], bool]:
        """Waits for the doorbell: the values it brought, and whether there were more than were kept."""
        await self.listener.aevent.wait()
        self.listener.aevent.clear()
        with get_listener_manager().lock:
            brought = [event.data for events in self.listener.channel_items.values() for event in events]
            overflow, self.listener.overflow = self.listener.overflow, False
            self.listener.channel_items.clear()
        return brought, overflow


@dataclass(eq=False)
class Track:
    """The newest events of a log in one rendering: every seq in (`floor`, the topic's position], without a gap."""

    rendering: Rendering
    floor: int
    items: deque[Item] = field(default_factory=deque)
    clients: int = 0
    _bytes: int = 0
    #: Cursor → what follows it: most clients stand at the same place.
    _frames: dict[int, tuple[bytes, int]] = field(default_factory=dict)

    def extend(self, items: Sequence[Item]) -> None:
        self._frames.clear()
        for item in items:
            self.items.append(item)
            self._bytes += item.size
        while len(self.items) > KEPT or (self._bytes > KEPT_BYTES and len(self.items) > 1):
            gone = self.items.popleft()
            self.floor = gone.seq
            self._bytes -= gone.size

    def restart(self, floor: int) -> None:
        self.items.clear()
        self._frames.clear()
        self.floor, self._bytes = floor, 0

    def after(self, cursor: int) -> tuple[bytes, int]:
        """The next frame after `cursor`, which is not below the floor, and the seq it leads to."""
        found = self._frames.get(cursor)
        if found is None:
            newest = self.items[-1].seq if self.items else self.floor
            # Contiguous: an item's place is its distance from the floor.
            following = [self.items[i] for i in range(cursor - self.floor, len(self.items))] if cursor < newest else []
            frame, count = self.rendering.frame(following) if following else (b"", 0)
            found = self._frames[cursor] = frame, cursor + count
        return found


class LogTopic(Topic):
    """One log: its reader, and a track for each rendering that somebody follows."""

    def __init__(
        self, log_id: UUID, position: int, listener: Listener, reading: Reading, *, incarnation: int = 0
    ) -> None:
        super().__init__(listener)
        self.log_id = log_id
        #: Of the database; with another one everything that was read is of another log.
        self.incarnation = incarnation
        #: The newest seq that was read; raised by the reader alone.
        self.position = position
        #: How often the log has been found to be another than it was: clients compare, and start again.
        self.rewinds = 0
        self.gone = False
        self.ended = False
        self.tracks: dict[str, Track] = {}
        self._reading = reading

    def follow(self, rendering: Rendering) -> Track:
        track = self.tracks.setdefault(rendering.name, Track(rendering, self.position))
        track.clients += 1
        return track

    def unfollow(self, track: Track) -> None:
        track.clients -= 1
        if not track.clients:
            del self.tracks[track.rendering.name]

    async def run(self) -> None:
        """Read whatever comes, once for everybody, until the last client has left."""
        while True:
            await self.rung()
            try:
                while await self._read():
                    pass
            except Error as error:
                logger.warning("live: cannot read a log (%s); trying again", type(error).__name__)
                await asyncio.sleep(PAUSE_S)
                self.knock()
            except Exception:
                # A reader that ended would leave its clients with heartbeats and nothing else, for ever.
                logger.exception("live: a log could not be shown", extra={"run_id": str(self.log_id)})
                await asyncio.sleep(PAUSE_S)

    async def _read(self) -> bool:
        """One page; whether there may be more."""
        tracks = list(self.tracks.values())
        after, rewinds = self.position, self.rewinds
        renderings = [track.rendering for track in tracks]
        pages = await self._reading.page(self.log_id, after, renderings, self.incarnation)
        if not pages or not pages[0] or rewinds != self.rewinds:
            return False
        for track, items in zip(tracks, pages, strict=True):
            track.extend(items)
        newest = pages[0]
        self.position = newest[-1].seq
        for track in self.tracks.values():
            if track not in tracks:  # somebody came while we read
                track.restart(self.position)
        self.ended = self.ended or any(item.terminal for item in newest)
        self.wake()
        return len(newest) == PAGE

    def found(self, head: int | None, *, asked_at: int, incarnation: int) -> None:
        """What a look into the table showed; `asked_at` is the position from which it was sent."""
        if head is None:
            self.gone = True
            self.wake()
        elif head < asked_at or incarnation != self.incarnation:
            self.rewinds += 1
            self.incarnation = incarnation
            self.position, self.ended = head, False
            for track in self.tracks.values():
                track.restart(head)
            self.wake()
        elif head > self.position:
            self.knock()


class ProjectTopic(Topic):
    """A project: which of its runs were created or moved, in order, as far back as a list may want to know."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        #: Number of the newest ring; an empty id stands for "more than could be told: look at everything".
        self.position = 0
        self._rings: deque[str] = deque(maxlen=KEPT)

    async def run(self) -> None:
        while True:
            brought, overflow = await self.rung()
            for run_id in [*brought, *([""] if overflow else [])]:
                self._rings.append(run_id)
                self.position += 1
            if brought or overflow:
                self.wake()

    def after(self, position: int) -> list[str]:
        """The ids since `position`, each once; an empty one where they are not known any more."""
        missed = self.position - position
        if missed > len(self._rings):
            return [""]
        return list(dict.fromkeys(list(self._rings)[len(self._rings) - missed :]))
