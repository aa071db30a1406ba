"""Stores watched sessions in the database of this site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from django.db import DataError, Error, close_old_connections

from agentops.accounts.models import Project
from runs.external import live_sessions
from runs.external.event_input import RejectedEvent
from runs.external.import_runs import ImportHindered, NotImported
from runs.external.importers.base import Item
from runs.external.live_sessions import KnownEvents


class SinkUnavailable(Exception):
    """The sink is temporarily unavailable. Retry after at least `retry_after` seconds."""

    def __init__(self, text: str, *, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class SinkRefused(Exception):
    """The items cannot be stored. A retry will fail too."""


class WatchSink(Protocol):
    """Stores sessions. Each method raises `SinkUnavailable` or `SinkRefused`."""

    def known(self, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
        """Return which of these events are stored."""
        ...

    def store(self, items: Sequence[Item]) -> None:
        """Store runs and events, all or nothing."""
        ...

    def let_wait(self, run_ref: str, *, with_open_calls: bool) -> bool:
        """Set a running session to waiting. Return False if it still runs."""
        ...


class LocalSink:
    """The database of this site."""

    def __init__(self, project: Project, *, by: str) -> None:
        self._project = project
        self._by = by

    def known(self, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
        with _storing():
            return live_sessions.known_events(self._project, run_ref, event_ids)

    def store(self, items: Sequence[Item]) -> None:
        with _storing():
            live_sessions.store(self._project, items, by=self._by)

    def let_wait(self, run_ref: str, *, with_open_calls: bool) -> bool:
        with _storing():
            return live_sessions.let_wait(self._project, run_ref, with_open_calls=with_open_calls)


@contextmanager
def _storing() -> Iterator[None]:
    """Translate errors. After a database error, reopen the connection."""
    try:
        yield
    except DataError as error:
        # The data is invalid, not the database: other items can be stored.
        raise SinkRefused(f"the database refuses it: {error}") from error
    except Error as error:
        close_old_connections()
        raise SinkUnavailable(f"the database cannot be used: {error}") from error
    except ImportHindered as error:
        raise SinkUnavailable(str(error)) from error
    except (RejectedEvent, NotImported) as error:
        raise SinkRefused(str(error)) from error
