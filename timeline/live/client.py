"""One open stream: what it is sent, in which order, and when it ends. The table decides; rings only wake it."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator
from typing import Protocol

from django.db import Error
from django_eventstream.utils import sse_encode_event

from timeline.access import Permit
from timeline.live.cursor import StreamCursor
from timeline.live.log_reader import Reading
from timeline.live.rendering import Item
from timeline.live.response import LogStream
from timeline.live.topic import PAUSE_S, LogTopic, ProjectTopic, Topic, Track

log = logging.getLogger(__name__)
HEARTBEAT_S = 15.0
#: A deployment must not wait for streams: each ends after this long and is opened again, not all at once.
MAX_AGE_S = 600.0
#: A client that takes nothing for this long is let go; it comes back with its cursor.
SLOW_S = 15.0
#: A client that may not read any more is cut off after this long, also where it takes nothing of what it was sent.
LINGER_S = 1.0
#: Milliseconds between which a browser waits before it comes back: jitter against a storm after a restart.
RETRY_MS = (1000, 5000)


class Feed(Protocol):
    """Where a client's bytes come from."""

    @property
    def topic(self) -> Topic: ...

    async def take(self) -> bytes:
        """What is new for this client; empty where there is nothing yet."""

    @property
    def over(self) -> bytes | None:
        """The last words, once everything was said; they may be none."""

    def close(self) -> None: ...


class Client:
    """A stream and its clock: heartbeat, age, and the reasons for which it is ended from outside."""

    def __init__(self, feed: Feed, permit: Permit) -> None:
        self.feed = feed
        self.permit = permit
        self.revoked_at: float | None = None
        self.draining = False
        now = time.monotonic()
        self.beat_at = now + HEARTBEAT_S
        self.ends_at = now + MAX_AGE_S * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load, guards nothing
        #: Since when the connection has taken nothing of what it was given; None where it has.
        self.sending_since: float | None = None

    def due(self, now: float) -> bool:
        """Whether it has to be woken though its topic has no news."""
        return now >= self.beat_at or now >= self.ends_at or self.draining or self.revoked_at is not None

    def revoke(self) -> None:
        """Its reader may not read any more."""
        if self.revoked_at is None:
            self.revoked_at = time.monotonic()

    def lingers(self, now: float) -> bool:
        return self.revoked_at is not None and now - self.revoked_at > LINGER_S

    def stuck(self, now: float) -> bool:
        return self.sending_since is not None and now - self.sending_since > SLOW_S

    async def frames(self) -> AsyncIterator[bytes]:
        """Everything to be sent. Ends quietly: whoever reads comes back with its cursor."""
        yield b"retry: %d\n\n" % random.randint(*RETRY_MS)  # noqa: S311 - spreads load, guards nothing
        while True:
            if self.revoked_at is not None:
                yield _event("auth-revoked", "")
                return
            if self.draining or time.monotonic() >= self.ends_at:
                return
            taken = await self._take()
            if taken is None:
                continue
            if taken:
                self.beat_at = time.monotonic() + HEARTBEAT_S
                yield taken
            elif (last := self.feed.over) is not None:
                if last:
                    yield last
                return
            elif time.monotonic() >= self.beat_at:
                self.beat_at = time.monotonic() + HEARTBEAT_S
                yield b": still here\n\n"
            else:
                await self.feed.topic.wait()

    async def _take(self) -> bytes | None:
        """None where the database did not answer: the stream stays open and asks again."""
        try:
            return await self.feed.take()
        except Error as error:
            log.warning("live: cannot read for a client (%s)", type(error).__name__)
            await asyncio.sleep(PAUSE_S)
            return None


class LogFeed:
    """A log from a cursor on: out of the topic's memory where that reaches back far enough, else out of the table."""

    def __init__(self, stream: LogStream, topic: LogTopic, reading: Reading) -> None:
        self.topic = topic
        self.cursor = stream.cursor.seq
        self._rendering = stream.rendering
        self._reading = reading
        self._track: Track = topic.follow(stream.rendering)
        self._rewinds = topic.rewinds
        self._ended = stream.ended
        self._last_seq = stream.last_seq
        behind = stream.last_seq - self.cursor
        #: The cursor is not of this log as it is, or too far back to be replayed.
        self._lost = behind < 0 or not stream.cursor.of(topic.incarnation)
        self._too_far = self._rendering.max_behind is not None and behind > self._rendering.max_behind
        self._sent_away = False
        #: What was read for this client alone and not sent yet.
        self._page: list[Item] = []

    async def take(self) -> bytes:
        if self._sent_away or self.topic.gone:
            return b""
        if self._lost or self._too_far or self._rewinds != self.topic.rewinds:
            return self._reset()
        if self.cursor >= self._track.floor and not self._page:
            frame, self.cursor = self._track.after(self.cursor)
            return frame
        if not self._page:
            log_id, renderings = self.topic.log_id, [self._rendering]
            [self._page] = await self._reading.page(log_id, self.cursor, renderings, self.topic.incarnation)
            if not self._page or self._page[0].seq != self.cursor + 1:
                # What should follow is not there: the log was cut. Say so; silence would look like a quiet run.
                self._page, self.topic.gone = [], True
                return b""
            self._ended = self._ended or any(item.terminal for item in self._page)
        frame, count = self._rendering.frame(self._page)
        self.cursor = self._page[count - 1].seq
        del self._page[:count]
        return frame

    @property
    def over(self) -> bytes | None:
        if self._sent_away:
            return b""
        if self.topic.gone:
            return self._told_to_reset()
        caught_up = self.cursor >= max(self._last_seq, self.topic.position)
        if caught_up and (self._ended or self.topic.ended):
            return _event("end", "", StreamCursor(self.cursor, self.topic.incarnation))
        return None

    def close(self) -> None:
        self.topic.unfollow(self._track)

    def _reset(self) -> bytes:
        """Say that what the client has is not this log's. A program is then sent everything from the first event;
        a page loads itself anew."""
        told = self._told_to_reset()
        self._lost = self._too_far = False
        self._sent_away = self._rendering.max_behind is not None
        self._page = []
        self._rewinds, self.cursor, self._last_seq = self.topic.rewinds, 0, 0
        return told

    def _told_to_reset(self) -> bytes:
        rewound = self._rewinds != self.topic.rewinds
        head = self.topic.position if rewound else max(self._last_seq, self.topic.position)
        return _event("stream-reset", json.dumps({"last_seq": head}), StreamCursor())


class ProjectFeed:
    """The runs of a project that moved since the stream was opened."""

    over = None

    def __init__(self, topic: ProjectTopic) -> None:
        self.topic = topic
        self._position = topic.position

    async def take(self) -> bytes:
        moved = self.topic.after(self._position)
        self._position = self.topic.position
        return b"".join(_event("run", run_id) for run_id in moved)

    def close(self) -> None:
        """Nothing to let go."""


def _event(name: str, data: str, cursor: StreamCursor | None = None) -> bytes:
    text: str = sse_encode_event(name, data, event_id=None if cursor is None else str(cursor))
    return text.encode()
