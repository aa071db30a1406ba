"""The scheduler of the clock. It extends the one of django-celery-beat.

Unlike that one, it continues after errors, after changes of the machine's clock, and with unreadable entries of users.
"""

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
#: Seconds between checks for changes of the schedule.
CHECK_S = 15.0
#: Seconds until the next attempt after an error.
RETRY_S = 5.0
#: Seconds to wait if an entry is almost due.
MIN_WAIT_S = 0.05
#: Seconds by which the machine's clock must be changed for the scheduler to recompute its due times.
CLOCK_JUMP_S = 2.0


class ClockEntry(ModelEntry):  # type: ignore[misc]
    """A schedule entry that is sent in time even if its last send time is in the future."""

    def is_due(self) -> Any:
        """Return whether the entry is due, and the seconds until the next check."""
        # A clock that was ahead may have stored the time. The entry would wait until then.
        self.last_run_at: datetime = min(self.last_run_at, self._default_now())
        return super().is_due()

    def save(self) -> None:
        """Store the time at which the task was sent. Other columns are not saved: a user may be editing the row."""
        rows = PeriodicTask.objects.filter(pk=self.model.pk)
        rows.update(last_run_at=self.model.last_run_at, total_run_count=self.model.total_run_count)


class SiteScheduler(DatabaseScheduler):  # type: ignore[misc]
    """Sends due tasks. Errors of the database, of the broker or of an entry do not end it.

    At its start it writes the entries of the settings, and deletes the ones that the settings no longer have.
    """

    Entry = ClockEntry
    #: Seconds between updates of the stored send times, and of the file's modification time.
    sync_every = 120

    def __init__(self, *args: Any, schedule_filename: str | None = None, **kwargs: Any) -> None:
        """Prepare the scheduler. `schedule_filename`: a file for monitors, which `sync` touches."""
        self._file = Path(schedule_filename) if schedule_filename else None
        self._is_set_up = False
        self._next_check = 0.0
        self._ahead = _wall_clock_ahead()
        super().__init__(*args, **kwargs)
        # `close` stores the send times. Celery would do so at the exit of the process, possibly without a database.
        self._finalize.cancel()

    def setup_schedule(self) -> None:
        """Do nothing yet: the tables may not exist."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send one entry that is due, and return the seconds until the next call. Never raises."""
        wait = RETRY_S
        try:
            if self._is_set_up or self._set_up():
                self._notice_clock_change()
                wait = super().tick(*args, **kwargs)
                # 0 means that other entries may be due; a negative number that one is almost due.
                wait = max(wait, MIN_WAIT_S) if wait else 0.0
        except Error as error:
            log.warning("the clock cannot use the database: %s", type(error).__name__)
        except OperationalError as error:
            log.warning("the clock cannot reach the broker: %s", type(error).__name__)
            # The entry that could not be sent is missing in the heap, so the heap is built again.
            self._heap = None
        except Exception:
            log.exception("the clock failed")
            self._heap = None
        if wait > 0:
            connection.close()
        return wait

    def _set_up(self) -> bool:
        """Write the entries of the settings once the tables exist. Return whether all of them are written."""
        if not is_migrated():
            return False
        entries = self.app.conf.beat_schedule
        # Entries of the settings have the names of their tasks. All others were created by users.
        PeriodicTask.objects.filter(name=F("task"), name__startswith="runs.").exclude(name__in=entries).delete()
        super().setup_schedule()
        # setup_schedule only logs an entry that it cannot write, and omits it in memory even if another clock wrote it.
        self._initial_read = True
        self._is_set_up = PeriodicTask.objects.filter(name__in=entries).count() == len(entries)
        return self._is_set_up

    def _ensure_connected(self) -> Any:
        """Connect to the broker, or raise. Celery's method would retry forever, and `tick` would not return.

        A worker with the pool prefork could then not end: before it forks a process, it waits for the end of `tick`.
        """
        return self.connection.ensure_connection(max_retries=0)

    def sync(self) -> None:
        """Store the send times, and touch the file."""
        super().sync()
        if self._file is not None:
            self._file.touch()

    def close(self) -> None:
        """Store the send times, and do not touch the file, because the scheduler ends."""
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
        """Return whether a user changed the schedule. The database is only asked every CHECK_S seconds."""
        if time.monotonic() < self._next_check:
            return False
        self._next_check = time.monotonic() + CHECK_S
        return bool(super().schedule_changed())

    def _notice_clock_change(self) -> None:
        """Recompute the due times if the machine's clock was changed."""
        ahead = _wall_clock_ahead()
        if abs(ahead - self._ahead) > CLOCK_JUMP_S:
            self._heap = None
        self._ahead = ahead


def _wall_clock_ahead() -> float:
    return time.time() - time.monotonic()  # noqa: TID251 - only compared with itself
