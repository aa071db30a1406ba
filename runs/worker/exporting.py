"""The exporter of this process. Its threads and connections to receivers last as long as the process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from runs.lifecycle.wake import EXPORT, ask_now
from runs.worker import worker
from runs.worker.upkeep_call import logged_errors

if TYPE_CHECKING:
    from runs.telemetry.exporter import Exporter

#: Seconds between two searches for files of deleted runs on the disk of this process.
TIDY_S = 3600.0


class Exporting:
    """Looks for events to send, and begins to send them."""

    def __init__(self) -> None:
        self._pid = 0
        self._exporter: Exporter | None = None
        self._tidied_at = 0.0
        self._lock = threading.Lock()

    def look(self) -> None:
        """Start exports that are due. Threads of the exporter send them, so a slow receiver does not block a task."""
        with self._lock:
            exporter = self._current()
        exporter.look()
        if not exporter.has_settled:
            # Some events were committed out of order, after events that are not committed yet.
            ask_now(EXPORT, countdown_s=1.0)
        if time.monotonic() - self._tidied_at > TIDY_S:
            self._tidied_at = time.monotonic()
            with logged_errors("the deletion of exported files"):
                _forget_removed_runs()

    def count_events(self, is_over: Callable[[], bool]) -> bool:
        """Count events for the metrics. Return whether more are left."""
        # Imported here, so that a worker is ready sooner.
        from runs.telemetry import metric_counts

        metric_counts.catch_up(is_over)
        return is_over()

    def close(self) -> None:
        """Wait for the requests in progress."""
        if self._exporter is not None and self._pid == os.getpid():
            self._exporter.close()
            self._exporter = None

    def _current(self) -> Exporter:
        """Return the exporter. A forked child has none of the threads of its parent."""
        if self._exporter is None or self._pid != os.getpid():
            from runs.telemetry import environment_sinks
            from runs.telemetry.exporter import Exporter

            environment_sinks.sync()
            self._exporter, self._pid = Exporter(worker.is_stopping, after_job=lambda: ask_now(EXPORT)), os.getpid()
            self._tidied_at = time.monotonic()
        return self._exporter


def _forget_removed_runs() -> None:
    from runs.telemetry.kinds.jsonl_sink import forget_removed_runs

    forget_removed_runs()


#: The exporter of this process.
exporting = Exporting()
