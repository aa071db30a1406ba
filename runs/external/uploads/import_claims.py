"""Claims of workers on uploaded files: one worker imports a file, and another continues if it dies.

A claim is a conditional UPDATE that increments `attempts`, the fencing token, and lasts AGENTOPS_LEASE_S. The worker
renews it. Every later change of the row requires that `attempts` is unchanged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connection, connections
from django.db.models import F, QuerySet

from agentops.base.database_clock import Now
from runs.models import FileImport, ImportState

log = logging.getLogger(__name__)


class ClaimLost(Exception):
    """Another worker has the import, or it was cancelled or deleted."""


def take() -> FileImport | None:
    """Claim the next import and return it; None if no import waits."""
    while (candidate := FileImport.objects.next_to_take()) is not None:
        mine = FileImport.objects.free().filter(pk=candidate.pk, attempts=candidate.attempts)
        # The condition makes the claim exclusive.
        if mine.update(
            state=ImportState.RUNNING, attempts=F("attempts") + 1, taken_until=_until(), started_at=Now(), events=None
        ):
            candidate.attempts += 1
            return candidate
    return None


def update(taken: FileImport, **values: Any) -> None:
    """Change the row of a claimed import. Raises `ClaimLost`."""
    if not _mine(taken).update(**values):
        raise ClaimLost(_why_lost(taken))


class ClaimCheck:
    """Checks that an import is still claimed, on this thread's connection at the time of creation.

    The import itself may use a private database, which does not show changes on the site.
    """

    def __init__(self, taken: FileImport) -> None:
        self._taken, self._site = taken, connections[DEFAULT_DB_ALIAS]

    def __call__(self) -> None:
        """Raise `ClaimLost` if the import was cancelled, deleted, or taken by another worker. One query."""
        query, parameters = _mine(self._taken).values("attempts").query.sql_with_params()
        with self._site.cursor() as cursor:
            cursor.execute(query, parameters)
            if cursor.fetchone() is None:
                raise ClaimLost(_why_lost(self._taken))


def _why_lost(taken: FileImport) -> str:
    return f"import {taken.pk} was cancelled or deleted, or another worker has it"


def release(taken: FileImport) -> None:
    """Hand an import back, so that another worker takes it immediately. This attempt does not count."""
    _mine(taken).update(state=ImportState.WAITING, taken_until=None, attempts=F("attempts") - 1)


@contextmanager
def renewing(taken: FileImport) -> Iterator[None]:
    """Renew the claim from a thread inside the `with` block."""
    done = threading.Event()
    thread = threading.Thread(target=_renew, args=[taken, done], name="import-claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _renew(taken: FileImport, done: threading.Event) -> None:
    try:
        while not done.wait(settings.AGENTOPS_RENEW_S):
            try:
                _mine(taken).update(taken_until=_until())
            except Error as error:
                # On SQLite, while the import writes: then no other worker can take it either.
                connection.close()
                log.debug("cannot renew the claim of an import: %s", type(error).__name__)
    finally:
        connection.close()


def _mine(taken: FileImport) -> QuerySet[FileImport]:
    return FileImport.objects.filter(pk=taken.pk, attempts=taken.attempts, state=ImportState.RUNNING)


def _until() -> Any:
    return Now() + timedelta(seconds=settings.AGENTOPS_LEASE_S)
