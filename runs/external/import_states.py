"""The states of imports: the claims of workers on uploaded files, the progress of an import, and its stored result.

A worker claims an import by a conditional UPDATE that increments `attempts`, the fencing token. A claim lasts
AGENTOPS_LEASE_S, and the worker renews it; if the worker dies, another one claims the import. Every change of the row
requires that `attempts` has not changed since the claim.

The progress is in Django's cache, because a row is visible only after the import's transaction. Without Redis, the
cache is in memory: then the web server only sees the progress of a worker in its own process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.core.cache import cache
from django.db import DEFAULT_DB_ALIAS, Error, connection, connections
from django.db.models import F, QuerySet

from agentops.accounts.models import Project
from agentops.accounts.names import truncate
from agentops.base.database_clock import Now
from runs.external.import_runs import ImportReport
from runs.models import FileImport, ImportState
from timeline.display import clean

log = logging.getLogger(__name__)


class ClaimLost(Exception):
    """Another worker has the import, or it was cancelled or deleted."""


def claim_next() -> FileImport | None:
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


def update(claimed: FileImport, **values: Any) -> None:
    """Change the row of a claimed import. Raises `ClaimLost`."""
    if not _mine(claimed).update(**values):
        raise ClaimLost(_why_lost(claimed))


class ClaimCheck:
    """Checks that an import is still claimed, on the connection that this thread has when it creates the check.

    Later, the thread may be connected to the private database of the import, where the row does not change.
    """

    def __init__(self, claimed: FileImport) -> None:
        self._taken, self._site = claimed, connections[DEFAULT_DB_ALIAS]

    def __call__(self) -> None:
        """Raise `ClaimLost` if the import was cancelled, deleted, or claimed by another worker. Takes one query."""
        query, parameters = _mine(self._taken).values("attempts").query.sql_with_params()
        with self._site.cursor() as cursor:
            cursor.execute(query, parameters)
            if cursor.fetchone() is None:
                raise ClaimLost(_why_lost(self._taken))


def _why_lost(claimed: FileImport) -> str:
    return f"import {claimed.pk} was cancelled or deleted, or another worker has it"


def release(claimed: FileImport) -> None:
    """Give a claimed import back, so that another worker can claim it immediately. The attempt does not count."""
    _mine(claimed).update(state=ImportState.WAITING, taken_until=None, attempts=F("attempts") - 1)


@contextmanager
def renewing(claimed: FileImport) -> Iterator[None]:
    """Renew the claim from a thread inside the `with` block."""
    done = threading.Event()
    thread = threading.Thread(target=_renew, args=[claimed, done], name="import-claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _renew(claimed: FileImport, done: threading.Event) -> None:
    """Renew a claim regularly until `done` is set."""
    try:
        while not done.wait(settings.AGENTOPS_RENEW_S):
            try:
                _mine(claimed).update(taken_until=_until())
            except Error as error:
                # On SQLite, while the import writes. Then no other worker can claim it either.
                connection.close()
                log.debug("cannot renew the claim of an import: %s", type(error).__name__)
    finally:
        connection.close()


def _mine(claimed: FileImport) -> QuerySet[FileImport]:
    return FileImport.objects.filter(pk=claimed.pk, attempts=claimed.attempts, state=ImportState.RUNNING)


def _until() -> Any:
    return Now() + timedelta(seconds=settings.AGENTOPS_LEASE_S)


#: Seconds between two reports of the progress.
EVERY_S = 0.5
#: Seconds until a report expires.
KEPT_S = 3600


class ProgressReport:
    """Reports the number of processed events of an import, at most every half second."""

    def __init__(self, import_id: UUID) -> None:
        self._key = _key(import_id)
        self._due_at = 0.0

    def report(self, report: ImportReport) -> None:
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + EVERY_S
        try:
            cache.set(self._key, report.events + report.known_events, KEPT_S)
        except (redis.RedisError, OSError) as error:
            log.debug("progress of an import: the cache does not answer (%s)", type(error).__name__)


def set_progress(imports: Sequence[FileImport]) -> None:
    """Set `events_done` of running imports, from the reports of their workers."""
    keys = {_key(one.pk): one for one in imports if one.state == ImportState.RUNNING and one.events}
    for one in imports:
        one.events_done = one.events or 0 if one.state == ImportState.DONE else 0
    try:
        reports = cache.get_many(keys) if keys else {}
    except (redis.RedisError, OSError) as error:
        log.debug("progress of imports: the cache does not answer (%s)", type(error).__name__)
        reports = {}
    for key, events in reports.items():
        # The report may be from an earlier attempt, and Redis is not trusted.
        if isinstance(events, int):
            keys[key].events_done = max(0, min(events, keys[key].events or 0))


def _key(import_id: UUID) -> str:
    return f"import:{import_id.hex}"


#: Maximum runs of a file whose IDs are stored with its import.
MAX_LISTED_RUNS = 100
#: Maximum characters of a file's name.
MAX_NAME = 255


def result_of(report: ImportReport) -> dict[str, Any]:
    """Return the columns of a finished import."""
    continued = sum(1 for run in report.runs if report.events_of[run.pk] and run.pk not in report.opened)
    return {
        "state": ImportState.DONE,
        "taken_until": None,
        "finished_at": Now(),
        "new_events": report.events,
        "new_runs": report.new_runs,
        "continued_runs": continued,
        "unchanged_runs": len(report.runs) - report.new_runs - continued,
        "left_out": _masked(report.left_out.dump()),
        "run_ids": [str(run.pk) for run in report.runs[:MAX_LISTED_RUNS]],
        "error": "",
        "error_code": "",
    }


def note_import(
    project: Project,
    report: ImportReport,
    *,
    name: str,
    by: str,
    size: int = 0,
    sha256: bytes = b"",
    format_name: str = "",
) -> FileImport:
    """Record that a command imported a file, or started to follow it.

    `size` is in bytes. For several files and for a growing file, `size` is 0, and `sha256` is empty.
    """
    return FileImport.objects.create(
        project=project,
        file_name=truncate(clean(name), MAX_NAME),
        size=size,
        sha256=sha256,
        format=format_name,
        events=report.events + report.known_events,
        created_by=by,
        **result_of(report),
    )


def _masked(left_out: dict[str, Any] | None) -> dict[str, Any] | None:
    """Mask secrets in the report of the lines that were left out, whose reasons may contain values of the file."""
    if left_out is not None:
        left_out["lines"] = [{**line, "reason": clean(line["reason"])} for line in left_out["lines"]]
    return left_out
