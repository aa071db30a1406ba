"""The progress of imports, in Django's cache: a row could not change before the end of the import's transaction.

Without Redis the cache is in memory, and the web server only sees the worker in its own process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from uuid import UUID

import redis
from django.core.cache import cache

from runs.models import FileImport, ImportState

log = logging.getLogger(__name__)
#: Seconds between two reports, and until a report expires.
EVERY_S, KEPT_S = 0.5, 3600


class ProgressReport:
    """Reports the events of an import, at most every half second."""

    def __init__(self, import_id: UUID) -> None:
        self._key = _key(import_id)
        self._due_at = 0.0

    def report(self, events: int) -> None:
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + EVERY_S
        try:
            cache.set(self._key, events, KEPT_S)
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
