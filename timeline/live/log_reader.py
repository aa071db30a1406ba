"""The few threads, and so the few connections, on which a process reads logs for its streams."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from uuid import UUID

from django.db import connections
from django.db.models import Exists, OuterRef

from agentops.projects import incarnations
from timeline import log
from timeline.live.rendering import Item, Rendering
from timeline.models import Event, Log, Tombstone

T = TypeVar("T")
#: Events of one read.
PAGE = 200
#: A connection is kept from one read to the next where that comes so soon: taking one out of the pool, where it is
#: tried first, and giving it back take longer than a read.
KEPT_S = 0.25


class Reading:
    def __init__(self, threads: int) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = threads
        for number in range(threads):
            threading.Thread(target=self._serve, name=f"stream-read_{number}", daemon=True).start()

    async def page(
        self, log_id: UUID, after: int, renderings: Sequence[Rendering], incarnation: int
    ) -> list[list[Item]]:
        """The next events after `after`, once for each rendering."""
        return await self._ask(lambda: _page(log_id, after, renderings, incarnation))

    async def heads(self, log_ids: Sequence[UUID]) -> tuple[int, dict[UUID, int]]:
        """The database's incarnation, and the newest seq of each log that there is."""
        return await self._ask(lambda: (incarnations.current(), _heads(log_ids)))

    def close(self) -> None:
        """Let the threads end when what was asked for is read; nobody waits for them."""
        for _ in range(self._threads):
            self._asked.put(None)

    async def _ask(self, read: Callable[[], T]) -> T:
        answer: Future[T] = Future()
        self._asked.put((answer, read))
        return await asyncio.wrap_future(answer)

    def _serve(self) -> None:
        """One thread: read what is asked for, and give the connection back when nothing more is."""
        wait: float | None = None
        while True:
            try:
                asked = self._asked.get(timeout=wait)
            except queue.Empty:
                connections.close_all()
                wait = None
                continue
            if asked is None:
                connections.close_all()
                return
            wait = KEPT_S
            _answer(*asked)


def _answer(answer: Future[T], read: Callable[[], T]) -> None:
    if not answer.set_running_or_notify_cancel():
        return  # whoever asked has left
    try:
        answer.set_result(read())
    except Exception as error:
        # Whatever is wrong with the connection, the next read has another.
        connections.close_all()
        answer.set_exception(error)


def _page(log_id: UUID, after: int, renderings: Sequence[Rendering], incarnation: int) -> list[list[Item]]:
    found: list[Event] = log.read(log_id, after=after, limit=PAGE)
    return [rendering.items(log_id, found, incarnation) if found else [] for rendering in renderings]


def _heads(log_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Without those that are being removed: who reads one of them is told so before its rows go."""
    removed = Exists(Tombstone.objects.filter(pk=OuterRef("pk")))
    return dict(Log.objects.filter(~removed, pk__in=log_ids).values_list("pk", "last_seq"))
