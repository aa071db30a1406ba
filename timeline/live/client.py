"""Clients of streams: their frames, heartbeats, and the end of a stream."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator

from django.db import Error

from timeline.live.access_watch import Permit
from timeline.live.log_reader import LogReader
from timeline.live.streams import JSON, Item, LogStream, StreamCursor, encode_notice
from timeline.live.topic import PAUSE_S, LogTopic, ProjectTopic, Track

log = logging.getLogger(__name__)
#: A client that gets no frame for this time gets a heartbeat.
HEARTBEAT_S = 15.0
#: An SSE comment. No empty line follows it, because some clients would read an event without data.
HEARTBEAT = b": still here\n"
#: A stream ends after 80 to 100 % of this time, and its client reopens it. So deployments need not wait for streams.
MAX_AGE_S = 600.0
#: A client that does not accept a frame for this long is disconnected. It reconnects with its cursor.
SLOW_S = 15.0
#: A client whose access was revoked is disconnected after this time, even if it does not accept the notice.
LINGER_S = 1.0
#: The range of a browser's reconnection delay in milliseconds, to spread reconnections after a restart.
RETRY_MS = (1000, 5000)


def retry_line() -> bytes:
    """Return the beginning of a stream: the delay before the client reconnects. No empty line follows it either."""
    return b"retry: %d\n" % random.randint(*RETRY_MS)  # noqa: S311 - spreads load, guards nothing


class Client:
    """An open stream, with its heartbeat, its age and the conditions that end it."""

    def __init__(self, feed: Feed, permit: Permit) -> None:
        self.feed = feed
        self.permit = permit
        self.revoked_at: float | None = None
        self.is_draining = False
        now = time.monotonic()
        self.beat_at = now + HEARTBEAT_S
        self.ends_at = now + MAX_AGE_S * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load, guards nothing
        #: The time since which a send is blocked, or None.
        self.sending_since: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether the client must be woken although its topic has no news."""
        return now >= self.beat_at or self.is_old(now) or self.is_draining or self.revoked_at is not None

    def is_old(self, now: float) -> bool:
        """Return whether the stream ends because of its age."""
        return now >= self.ends_at and self.feed.rendering.is_reopened

    def revoke(self) -> None:
        """End the stream because its reader lost access."""
        if self.revoked_at is None:
            self.revoked_at = time.monotonic()

    def is_lingering(self, now: float) -> bool:
        """Return whether the stream is still open `LINGER_S` after access was revoked."""
        return self.revoked_at is not None and now - self.revoked_at > LINGER_S

    def is_stuck(self, now: float) -> bool:
        """Return whether a send has been blocked for more than `SLOW_S`."""
        return self.sending_since is not None and now - self.sending_since > SLOW_S

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the frames to send until the stream ends.

        Clients that reopen streams (`Rendering.is_reopened`) then reconnect with their cursor, except after the notices
        `end` and `auth-revoked`.
        """
        yield retry_line()
        while True:
            if self.revoked_at is not None:
                yield self.feed.rendering.notice("auth-revoked", "", None)
                return
            if self.is_draining or self.is_old(time.monotonic()):
                return
            frame = await self._take()
            if frame is None:
                continue
            if frame:
                self.beat_at = time.monotonic() + HEARTBEAT_S
                yield frame
            elif (last := self.feed.last_frame) is not None:
                if last:
                    yield last
                return
            elif time.monotonic() >= self.beat_at:
                self.beat_at = time.monotonic() + HEARTBEAT_S
                yield HEARTBEAT
            else:
                await self.feed.topic.wait()

    async def _take(self) -> bytes | None:
        """Return the next frame, or None after a database error. The stream stays open."""
        try:
            return await self.feed.take()
        except Error as error:
            log.warning("live: cannot read for a client (%s)", type(error).__name__)
            await asyncio.sleep(PAUSE_S)
            return None


class LogFeed:
    """The events of a log after a cursor: from the topic's buffer, and older ones from the database."""

    def __init__(self, stream: LogStream, topic: LogTopic, reader: LogReader) -> None:
        self.topic = topic
        self.cursor = stream.cursor.seq
        self.rendering = stream.rendering
        self._reader = reader
        self._track: Track = topic.follow(stream.rendering)
        self._rewinds = topic.rewinds
        self._ended = stream.ended
        self._last_seq = stream.last_seq
        behind = stream.last_seq - self.cursor
        #: Whether the cursor is invalid for this log, such as after a restore.
        self._is_cursor_invalid = behind < 0 or not stream.cursor.is_valid_in(topic.incarnation)
        self._is_too_far_behind = self.rendering.max_behind is not None and behind > self.rendering.max_behind
        self._is_page_reloading = False
        #: Whether the stream ends after the last frame.
        self._is_closed = False
        #: Events that were read for this client and not sent yet.
        self._page: list[Item] = []

    async def take(self) -> bytes:
        """Return the next frame of events; empty if there is nothing new."""
        if self._is_closed or self._is_page_reloading or self.topic.is_deleted:
            return b""
        if self._is_cursor_invalid or self._is_too_far_behind or self._rewinds != self.topic.rewinds:
            return self._reset()
        if self.cursor >= self._track.floor and not self._page:
            frame, self.cursor, self._is_closed = self._track.next_frame(self.cursor)
            return frame
        if not self._page:
            log_id, renderings = self.topic.log_id, [self.rendering]
            [self._page] = await self._reader.page(log_id, self.cursor, renderings, self.topic.incarnation)
            if not self._page or self._page[0].seq != self.cursor + 1:
                # The next events are missing, so the log was truncated. Reset the client.
                self._page, self.topic.is_deleted = [], True
                return b""
            self._ended = self._ended or any(item.terminal for item in self._page)
        frame, count = self.rendering.frame(self._page)
        self.cursor, self._is_closed = self._page[count - 1].seq, self._page[count - 1].closes
        del self._page[:count]
        return frame

    @property
    def last_frame(self) -> bytes | None:
        """The last frame, possibly empty, if the client has received everything. None if the stream continues.

        It is the notice `end` after the last event of an ended log, or `stream-reset` for a deleted log.
        """
        if self._is_closed or self._is_page_reloading:
            return b""
        if self.topic.is_deleted:
            return self._reset_event()
        caught_up = self.cursor >= max(self._last_seq, self.topic.position)
        if caught_up and (self._ended or self.topic.ended):
            return self.rendering.notice("end", "", StreamCursor(self.cursor, self.topic.incarnation))
        return None

    def close(self) -> None:
        """Stop following the log."""
        self.topic.unfollow(self._track)

    def _reset(self) -> bytes:
        """Return the notice `stream-reset`, and start over: API clients then get all events, and a page reloads.

        A stream that its client does not reopen ends instead.
        """
        reset = self._reset_event()
        self._is_closed = not self.rendering.is_reopened
        self._is_cursor_invalid = self._is_too_far_behind = False
        self._is_page_reloading = self.rendering.max_behind is not None
        self._page = []
        self._rewinds, self.cursor, self._last_seq = self.topic.rewinds, 0, 0
        return reset

    def _reset_event(self) -> bytes:
        rewound = self._rewinds != self.topic.rewinds
        head = self.topic.position if rewound else max(self._last_seq, self.topic.position)
        return self.rendering.notice("stream-reset", json.dumps({"last_seq": head}), StreamCursor())


class ProjectFeed:
    """The IDs of a project's runs that changed since the stream was opened."""

    #: The stream never ends by itself.
    last_frame = None
    rendering = JSON

    def __init__(self, topic: ProjectTopic) -> None:
        self.topic = topic
        self._position = topic.position

    async def take(self) -> bytes:
        """Return one event `run` for each changed run; empty without any."""
        run_ids = self.topic.ids_since(self._position)
        self._position = self.topic.position
        return b"".join(encode_notice("run", run_id, None) for run_id in run_ids)

    def close(self) -> None:
        """Do nothing: the feed holds no resources."""


#: The source of a client's frames.
Feed = LogFeed | ProjectFeed
