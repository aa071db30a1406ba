"""Calls of upkeep tasks: a time limit, one call at a time in a process, and error handling."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from celery import shared_task
from django.db import Error, connection

from agentops.base.database.applied_migrations import is_migrated
from runs.lifecycle.wake import ask_now
from runs.worker import worker

log = logging.getLogger(__name__)
#: Seconds that a call works before it frees its place for other upkeep tasks.
CALL_S = 10.0
#: Seconds between two checks whether the database has the schema of this version.
SCHEMA_S = 5.0
_has_schema = False
#: When to check next, in monotonic seconds.
_check_at = 0.0


class CallTime:
    """The time limit of a call, `CALL_S` seconds."""

    def __init__(self) -> None:
        self._until = time.monotonic() + CALL_S

    def is_over(self) -> bool:
        """Whether the call has to end: its time is over, or its worker ends."""
        return worker.is_stopping() or time.monotonic() >= self._until

    def rest(self, seconds: float) -> None:
        """Sleep, but not beyond the time of the call or the end of the worker."""
        worker.current().shutdown.requested.wait(min(seconds, max(self._until - time.monotonic(), 0)))


#: Works until no work is left or its time is over. Returns whether work is left.
Work = Callable[[CallTime], bool]


class UpkeepCall:
    """Calls `work`, one call at a time in a process. Never raises.

    A call during another call returns at once, and makes the other call `work` once more. So concurrent calls occupy
    one place of the pool only, and work that is created during a call is not missed.
    """

    def __init__(self, name: str, what: str, work: Work) -> None:
        self._name, self._what, self._work = name, what, work
        self._again = threading.Event()
        self._working = threading.Lock()

    def __call__(self) -> None:
        time_left = CallTime()
        self._again.set()
        while self._again.is_set() and not worker.is_stopping() and self._working.acquire(blocking=False):
            try:
                self._again.clear()
                if self._attempt(time_left):
                    self._again.set()
                is_over = time_left.is_over()
            finally:
                self._working.release()
            if is_over and self._again.is_set():
                ask_now(self._name)
                return

    def _attempt(self, time_left: CallTime) -> bool:
        with logged_errors(self._what):
            return _may_work() and self._work(time_left)
        return False


def upkeep_task(name: str, what: str) -> Callable[[Work], Callable[[], None]]:
    """Make a Celery task with this name of the decorated function. `what` names the work in log lines about errors."""

    def decorate(work: Work) -> Callable[[], None]:
        call = UpkeepCall(name, what, work)

        def run() -> None:
            call()

        run.__doc__, run.__module__, run.__qualname__ = work.__doc__, work.__module__, work.__qualname__
        task: Callable[[], None] = shared_task(run, name=name)
        return task

    return decorate


@contextmanager
def logged_errors(what: str) -> Iterator[None]:
    """Log an error instead of raising it, and close the thread's database connection."""
    try:
        yield
    except Error as error:
        log.warning("%s cannot use the database: %s", what, type(error).__name__)
    except Exception:
        log.exception("%s failed", what)
    finally:
        if not connection.in_atomic_block:
            connection.close()


def _may_work() -> bool:
    """Whether the database has the schema of this version. With another schema, results could be lost."""
    global _has_schema, _check_at
    if not _has_schema and time.monotonic() >= _check_at:
        _check_at = time.monotonic() + SCHEMA_S
        _has_schema = is_migrated()
    return _has_schema
