"""The scheduler of the clock: django-celery-beat's, for a database that may fail, be late, or have other entries."""

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
#: Seconds between two looks for changes of the schedule, and until the next attempt after an error.
CHANGES_S, RETRY_S = 15.0, 5.0
#: Seconds to rest if an entry is not quite due.
MOMENT_S = 0.05
#: A jump of the system clock by more than so many seconds makes the scheduler compute its due times again.
SET_S = 2.0


class ClockEntry(ModelEntry):  # type: ignore[misc]
    """An entry of the schedule that also becomes due if the clock of a machine is set, or differs from others'."""

    def is_due(self) -> Any:
        """Return whether the entry is due, and when it is next."""
        # Stored by a clock that was ahead: without this, the entry would wait until then.
        self.last_run_at: datetime = min(self.last_run_at, self._default_now())
        return super().is_due()

    def save(self) -> None:
        """Store when the task was sent. Nothing else: somebody may be changing the row."""
        rows = PeriodicTask.objects.filter(pk=self.model.pk)
        rows.update(last_run_at=self.model.last_run_at, total_run_count=self.model.total_run_count)


class SiteScheduler(DatabaseScheduler):  # type: ignore[misc]
    """Sends what is due. No error ends it: neither of the database nor of an entry.

    At its start it writes the entries of the settings again, and removes those that the settings had before.
    """

    Entry = ClockEntry
    #: Seconds between two stores of when tasks were sent, and two touches of the file.
    sync_every = 120

    def __init__(self, *args: Any, schedule_filename: str | None = None, **kwargs: Any) -> None:
        """`schedule_filename`: a file for monitors, that is touched while the clock works."""
        self._file = Path(schedule_filename) if schedule_filename else None
        self._is_set_up = False
        self._look_at = 0.0
        self._ahead = _wall_clock_ahead()
        super().__init__(*args, **kwargs)
        # `close` stores it: at the exit of the process there may be no database any more.
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
                # Negative if an entry is due in a moment. 0: others may be due.
                wait = max(wait, MOMENT_S) if wait else 0.0
        except Error as error:
            log.warning("the clock cannot use the database: %s", type(error).__name__)
        except OperationalError as error:
            log.warning("the clock cannot reach the broker: %s", type(error).__name__)
            # The entry that was to be sent is no longer in it.
            self._heap = None
        except Exception:
            log.exception("the clock failed")
            self._heap = None
        if wait > 0:
            connection.close()
        return wait

    def _set_up(self) -> bool:
        """Write the entries of the settings, once the tables exist. Return whether they do."""
        if not is_migrated():
            return False
        entries = self.app.conf.beat_schedule
        # Their names are those of their tasks. Other entries are not the site's.
        PeriodicTask.objects.filter(name=F("task"), name__startswith="runs.").exclude(name__in=entries).delete()
        super().setup_schedule()
        # An entry that could not be written is only logged there.
        self._is_set_up = PeriodicTask.objects.filter(name__in=entries).count() == len(entries)
        return self._is_set_up

    def _ensure_connected(self) -> Any:
        """Connect to the broker, or raise: Celery would try without end, and a worker that forks could not end."""
        return self.connection.ensure_connection(max_retries=0)

    def sync(self) -> None:
        """Store when tasks were sent, and touch the file."""
        super().sync()
        if self._file is not None:
            self._file.touch()

    def close(self) -> None:
        """Store when tasks were sent. The file stays: a scheduler that has ended does not work."""
        super().sync()

    def install_default_entries(self, data: Any) -> None:
        """Install none: Celery's own task deletes results of tasks, and none are stored."""

    def all_as_schedule(self) -> dict[str, ClockEntry]:
        """Return the enabled entries by name. One that cannot be read is left out."""
        entries = {}
        for row in self.enabled_models():
            try:
                entries[row.name] = self.Entry(row, app=self.app)
            except Exception as error:  # whatever a wrong row raises in django-celery-beat
                log.warning("the periodic task %r cannot be read: %s", row.name, type(error).__name__)
        return entries

    def schedule_changed(self) -> bool:
        """Return whether somebody has changed the schedule. Looks every few seconds only, not at each tick."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + CHANGES_S
        return bool(super().schedule_changed())

    def _notice_set_clock(self) -> None:
        """Compute the due times anew if the clock of the machine was set: they are times of that clock."""
        ahead = _wall_clock_ahead()
        if abs(ahead - self._ahead) > SET_S:
            self._heap = None
        self._ahead = ahead


def _wall_clock_ahead() -> float:
    return time.time() - time.monotonic()  # noqa: TID251 - only compared with itself
