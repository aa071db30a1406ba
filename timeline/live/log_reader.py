"""Reads logs for all streams of a process, on a fixed number of threads and database connections."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import connections
from django.db.models import Exists, OuterRef

from agentops.accounts.models import audit_models
from agentops.base import database_clock
from timeline import log, reading
from timeline.live.streams import Item, Rendering
from timeline.models import Event, Log, Tombstone

T = TypeVar("T")
#: New logs are searched among the logs with IDs of the last 60 s: the transaction that creates a log may take a while.
RECENT_S = 60.0
#: Maximum logs, or events, that one search reads.
MAX_RECENT = 500
#: How long an idle connection is kept: getting one from the pool and returning it takes longer than a read.
IDLE_CONNECTION_S = 0.25


class LogReader:
    """A pool of reader threads."""

    def __init__(self, threads: int) -> None:
        self._requests: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = threads
        for number in range(threads):
            threading.Thread(target=self._serve, name=f"stream-read_{number}", daemon=True).start()

    async def page(
        self, log_id: UUID, after: int, renderings: Sequence[Rendering], incarnation: int
    ) -> list[list[Item]]:
        """Return the next events after seq `after`, rendered once for each rendering."""
        return await self._submit(lambda: _page(log_id, after, renderings, incarnation))

    async def heads(self, log_ids: Sequence[UUID]) -> tuple[int, dict[UUID, int]]:
        """Return the incarnation of the database, and the last seq of each existing log."""
        return await self._submit(lambda: (audit_models.current_incarnation(), _heads(log_ids)))

    async def new_logs(self, project_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """Return the recently created logs of some projects, with the project of each."""
        return await self._submit(lambda: _new_logs(project_ids))

    async def moves(self, project_ids: Sequence[UUID], after: int | None) -> tuple[int, dict[UUID, UUID]]:
        """Return the row ID of the newest event read, and each log with a `run.` event after `after`, with its project.

        With `after` None, no logs are returned.
        """
        return await self._submit(lambda: _moves(project_ids, after))

    def close(self) -> None:
        """Stop the threads after the pending reads. Does not wait for them."""
        for _ in range(self._threads):
            self._requests.put(None)

    async def _submit(self, read: Callable[[], T]) -> T:
        answer: Future[T] = Future()
        self._requests.put((answer, read))
        return await asyncio.wrap_future(answer)

    def _serve(self) -> None:
        """Execute reads on one thread, and return the connection to the pool when idle."""
        wait: float | None = None
        while True:
            try:
                request = self._requests.get(timeout=wait)
            except queue.Empty:
                connections.close_all()
                wait = None
                continue
            if request is None:
                connections.close_all()
                return
            wait = IDLE_CONNECTION_S
            _answer(*request)


def _answer(answer: Future[T], read: Callable[[], T]) -> None:
    """Set the result of a read, or its exception."""
    if not answer.set_running_or_notify_cancel():
        return  # the client has disconnected
    try:
        answer.set_result(read())
    except Exception as error:
        # The connection may be broken: the next read gets another one.
        connections.close_all()
        answer.set_exception(error)


def _page(log_id: UUID, after: int, renderings: Sequence[Rendering], incarnation: int) -> list[list[Item]]:
    events: list[Event] = log.read(log_id, after=after, limit=settings.SSE_MAX_BUFFER)
    return [rendering.items(log_id, events, incarnation) if events else [] for rendering in renderings]


def _new_logs(project_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    # An ID begins with the milliseconds at which it was created.
    begin = UUID(int=round((database_clock.timestamp() - RECENT_S) * 1000) << 80)
    rows = Log.objects.filter(project__in=project_ids, pk__gte=begin).order_by("-pk")
    return dict(rows.values_list("pk", "project_id")[:MAX_RECENT])


def _moves(project_ids: Sequence[UUID], after: int | None) -> tuple[int, dict[UUID, UUID]]:
    newest = reading.newest_event()
    if after is None or newest <= after:
        return newest, {}
    # On PostgreSQL, an event that commits after an event with a higher ID is missed. A page itself polls every 5 s.
    moved = Event.objects.filter(pk__gt=after, pk__lte=newest, type__startswith="run.").order_by("pk")
    rows = list(moved.values_list("pk", "log")[:MAX_RECENT])
    # Not a join: SQLite would start with all logs of the projects.
    logs = Log.objects.filter(pk__in={log_id for _, log_id in rows}, project__in=project_ids)
    projects = dict(logs.values_list("pk", "project_id")) if rows else {}
    return rows[-1][0] if len(rows) == MAX_RECENT else newest, projects


def _heads(log_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Return the last seq of each log, without logs that are being deleted, so that their streams end."""
    removed = Exists(Tombstone.objects.filter(pk=OuterRef("pk")))
    return dict(Log.objects.filter(~removed, pk__in=log_ids).values_list("pk", "last_seq"))
