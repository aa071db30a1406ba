"""The scheduler of Celery beat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery.beat import Scheduler


class MemoryScheduler(Scheduler):  # type: ignore[misc]
    """Keeps its schedule in memory. Celery's default one keeps it in a file that it unpickles.

    Nothing depends on when a task was last sent. The file is touched every minute, for monitors.
    """

    sync_every = 60

    def __init__(self, *args: Any, schedule_filename: str | None = None, **kwargs: Any) -> None:
        self._file = Path(schedule_filename) if schedule_filename else None
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Read the schedule from the settings."""
        self.merge_inplace(self.app.conf.beat_schedule)
        self.sync()

    def sync(self) -> None:
        """Touch the file."""
        if self._file is not None:
            self._file.touch()

    def close(self) -> None:
        """Touch nothing: a scheduler that has ended does not work."""
