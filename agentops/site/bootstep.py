"""The clock, which sends periodic tasks, in a thread of a worker."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, cast

from celery import bootsteps
from django.db import connection
from django.utils.module_loading import import_string

log = logging.getLogger(__name__)
#: Seconds until the next attempt after an error.
RETRY_S = 1.0
#: Maximum seconds to wait for the end of the thread, which stores the times at which it sent tasks.
END_S = 2.0


class ClockThread:
    """Sends due tasks until it is stopped. Several clocks in a site are harmless: tasks claim their work."""

    def __init__(self, app: Any, *, forks: bool = False) -> None:
        """Prepare the thread. `forks`: this process forks children, which must not inherit database connections."""
        self._app, self._forks = app, forks
        self._ticking = threading.Lock()
        if forks:
            lock = self._ticking
            os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait up to END_S seconds for it."""
        self._is_stopping.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)

    def _run(self) -> None:
        """Send due tasks until the thread is stopped."""
        self._app.set_current()
        scheduler = import_string(self._app.conf.beat_scheduler.replace(":", "."))(self._app)
        while not self._is_stopping.wait(self._tick(scheduler)):
            pass
        with self._ticking:
            scheduler.close()
            self._disconnect()

    def _tick(self, scheduler: Any) -> float:
        """Send due tasks, and return the seconds until the next call. Never raises: the thread would end."""
        with self._ticking:
            try:
                wait: float = scheduler.tick()
                if wait > 0:
                    if scheduler.should_sync():
                        scheduler._do_sync()
                    self._disconnect()
            except Exception:
                log.exception("the clock failed")
                return RETRY_S
        return wait

    def _disconnect(self) -> None:
        connection.close()
        if self._forks and connection.vendor == "postgresql":
            # Otherwise a child would use the parent's connections.
            cast("Any", connection).close_pool()


class ClockStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the clock in a worker with the option `with_clock`, in the process that has the broker connection.

    runs/worker/startup.py turns Celery's `--beat`, which forks a process, into this option.
    """

    # The pool starts first, so that children are forked before the clock opens a connection.
    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, with_clock: bool = False, **kwargs: Any) -> None:
        self.enabled = with_clock
        super().__init__(worker, **kwargs)

    def create(self, worker: Any) -> ClockThread:
        return ClockThread(worker.app, forks="prefork" in str(worker.pool_cls))
