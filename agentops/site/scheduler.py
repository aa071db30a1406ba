"""The clock's scheduler: django-celery-beat's, with tolerance for database errors, delays and foreign entries."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db import Error, connection
from django.db.models import F
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry
from kombu.exceptions import OperationalError

from agentops.base.database.applied_migrations import is_migrated

log = logging.getLogger(__name__)
#: Seconds between checks for changes of the schedule, and until the next attempt after an error.
CHANGES_S, RETRY_S = 15.0, 5.0
#: Seconds to wait if an entry is almost due.
MOMENT_S = 0.05
#: The scheduler recomputes its due times if the system clock jumps by more than this many seconds.
SET_S = 2.0


class ClockEntry(ModelEntry):  # type: ignore[misc]
    """A schedule entry that also becomes due if a machine's clock was changed, or differs from other clocks."""

    def is_due(self) -> Any:
        """Return whether the entry is due, and when it is next."""
        # Stored by a clock that was ahead: without this, the entry would wait until that time.
        self.last_run_at: datetime = min(self.last_run_at, self._default_now())
        return super().is_due()

    def save(self) -> None:
        """Store the time at which the task was sent. Other columns are not saved: a user may be editing the row."""
        rows = PeriodicTask.objects.filter(pk=self.model.pk)
        rows.update(last_run_at=self.model.last_run_at, total_run_count=self.model.total_run_count)


class SiteScheduler(DatabaseScheduler):  # type: ignore[misc]
    """Sends due tasks. Errors of the database or of an entry do not end it.

    At its start it rewrites the entries from the settings, and removes entries of earlier settings.
    """

    Entry = ClockEntry
    #: Seconds between updates of the stored send times, and of the file's modification time.
    sync_every = 120

    def __init__(self, *args: Any, schedule_filename: str | None = None, **kwargs: Any) -> None:
        """Prepare the scheduler. `schedule_filename`: a file for monitors, touched while the clock works."""
        self._file = Path(schedule_filename) if schedule_filename else None
        self._is_set_up = False
        self._look_at = 0.0
        self._ahead = _wall_clock_ahead()
        super().__init__(*args, **kwargs)
        # `close` stores it: at process exit the database may be unavailable.
        self._finalize.cancel()

    def setup_schedule(self) -> None:
        """Do nothing yet: the tables may not exist."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send one entry that is due, and return the seconds until the next call. Never raises."""
        wait = RETRY_S
        try:
            if self._is_set_up or self._set_up():
                self._notice_set_clock()
                wait = super().tick(*args, **kwargs)
                # Negative if an entry is almost due. 0: others may be due.
                wait = max(wait, MOMENT_S) if wait else 0.0
        except Error as error:
            log.warning("the clock cannot use the database: %s", type(error).__name__)
        except OperationalError as error:
            log.warning("the clock cannot reach the broker: %s", type(error).__name__)
            # The entry that should have been sent is missing in the heap.
            self._heap = None
        except Exception:
            log.exception("the clock failed")
            self._heap = None
        if wait > 0:
            connection.close()
        return wait

    def _set_up(self) -> bool:
        """Write the entries of the settings once the tables exist. Return whether they exist."""
        if not is_migrated():
            return False
        entries = self.app.conf.beat_schedule
        # Entries have the names of their tasks. Other entries do not belong to the site.
        PeriodicTask.objects.filter(name=F("task"), name__startswith="runs.").exclude(name__in=entries).delete()
        super().setup_schedule()
        # An entry that could not be written is only logged there, and missing in memory even if another clock wrote it.
        self._initial_read = True
        self._is_set_up = PeriodicTask.objects.filter(name__in=entries).count() == len(entries)
        return self._is_set_up

    def _ensure_connected(self) -> Any:
        """Connect to the broker, or raise. Celery would retry endlessly, and a worker that forks could not end."""
        return self.connection.ensure_connection(max_retries=0)

    def sync(self) -> None:
        """Store the send times, and touch the file."""
        super().sync()
        if self._file is not None:
            self._file.touch()

    def close(self) -> None:
        """Store the send times. The file is not touched: an ended scheduler does not work."""
        super().sync()

    def install_default_entries(self, data: Any) -> None:
        """Do nothing: Celery's own task deletes task results, which are not stored."""

    def all_as_schedule(self) -> dict[str, ClockEntry]:
        """Return the enabled entries by name. Unreadable entries are omitted."""
        entries = {}
        for row in self.enabled_models():
            try:
                entries[row.name] = self.Entry(row, app=self.app)
            except Exception as error:  # whatever a wrong row raises in django-celery-beat
                log.warning("the periodic task %r cannot be read: %s", row.name, type(error).__name__)
        return entries

    def schedule_changed(self) -> bool:
        """Return whether a user changed the schedule. Checks every 15 seconds only, not at each tick."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + CHANGES_S
        return bool(super().schedule_changed())

    def _notice_set_clock(self) -> None:
        """Recompute the due times if the machine's clock was changed: they are times of that clock."""
        ahead = _wall_clock_ahead()
        if abs(ahead - self._ahead) > SET_S:
            self._heap = None
        self._ahead = ahead


def _wall_clock_ahead() -> float:
    return time.time() - time.monotonic()  # noqa: TID251 - only compared with itself
