"""The worker of this process: its leases, and its event loop for model calls.

Celery's pool decides which runs it drives.
"""

from __future__ import annotations

import _thread
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import Error, connection

from agentops.base.broker.queues import FIRST
from runs.database_errors import concerns_all
from runs.engine import engine_errors
from runs.engine.event_loop import LoopThread
from runs.engine.leases import LeaseKeeper
from runs.engine.sessions import subagent_records
from runs.engine.shutdown import Shutdown
from runs.engine.step import drive_run
from runs.errors import MoveRefused
from runs.external.session_agents import SessionAgents
from runs.lifecycle import suspects, suspicion, wake, worker_rows
from runs.lifecycle.suspicion import Suspected
from runs.models import AgentRun
from runs.statuses import RunStatus
from runs.worker.quarantine import try_alone
from timeline.errors import LeaseLost

log = logging.getLogger(__name__)
subagent_records.use(SessionAgents)
#: Seconds for the threads to end if the runs have used the whole grace period.
THREADS_END_S = 1.0
#: The number of suspected runs to try next after one has passed.
NEXT = 2


class Worker:
    """Drives runs, each in the thread that asks for it, and holds their leases."""

    def __init__(self, *, owner: str = "") -> None:
        self.pid = os.getpid()
        self.owner = owner or f"{socket.gethostname()[:64]}:{self.pid}:{secrets.token_hex(4)}"
        self.shutdown = Shutdown()
        self._keeper = LeaseKeeper(self._announce)
        self.loop = LoopThread()
        self._tries = count(1)
        #: Held while a process tries a run: one at a time, because the process takes seconds to start and to claim the
        #: run.
        self._trying_alone = threading.Lock()

    def drive(self, run_id: UUID, expected: Mapping[str, Any] | None = None) -> bool:
        """Claim a run and drive it for a slice in this thread. Returns False if there was no run to claim.

        Claims the run only while its columns have the `expected` values.

        A suspected run, in which workers have died, is tried in a separate process, or left to a later message.
        """
        if self.shutdown.requested.is_set():
            return False
        try:
            return drive_run(
                run_id, self.owner, self._keeper, self.loop, self.shutdown,
                on_progress=self.try_next_suspects, expected=expected,
            )  # fmt: skip
        except Suspected as suspect:
            return self._try_carefully(suspect)
        except Exception:
            # runs.engine.engine_errors handles errors in a step. After an error here the lease expires.
            log.exception("a run was left to the next worker after an error", extra={"run_id": str(run_id)})
            return True

    def _try_carefully(self, suspect: Suspected) -> bool:
        if suspect.is_alone and suspect.lapsed:
            self._set_aside(suspect)
        elif suspect.is_alone and self._trying_alone.acquire(blocking=False):
            try:
                self._drive_alone(suspect.run_id)
            finally:
                self._trying_alone.release()
            self.try_next_suspects()
            return True
        # Another suspected run is being tried. Its end sends the message again.
        return False

    def _drive_alone(self, run_id: UUID) -> None:
        """Drive a run for one step in a separate process, while this thread waits."""
        try:
            try_alone(run_id, f"{self.owner}{suspicion.CHILD_SEPARATOR}{next(self._tries)}", self.shutdown)
        except Exception:
            log.exception("a run could not be tried in a separate process", extra={"run_id": str(run_id)})
        run = AgentRun.objects.filter(pk=run_id, status=RunStatus.QUEUED).first()
        if run is not None and not settings.REDIS_URL:
            # The other process has released the run, but its message could not reach a queue.
            wake.send(run)

    def try_next_suspects(self) -> None:
        """Send the messages of the next suspected runs, which had to wait for another suspected run."""
        if self.shutdown.requested.is_set() or not wake.can_send():
            return
        for run in suspects.waiting(NEXT):
            wake.send(run, priority=FIRST)

    def _set_aside(self, suspect: Suspected) -> None:
        try:
            suspects.set_aside(suspect.run_id, self.owner, wait_s=suspects.pause_s(suspect.deaths))
        except (LeaseLost, MoveRefused):
            return None  # another worker claimed it first
        except Exception as error:
            if not concerns_all(error):
                return engine_errors.note_unclaimed(suspect.run_id, error)
            log.warning("cannot set a run aside: %s", type(error).__name__, extra={"run_id": str(suspect.run_id)})

    def _announce(self) -> None:
        """Store that this process is active, if it is a Celery worker."""
        if served is not None and not self.shutdown.requested.is_set():
            worker_rows.announce(self.owner, served.queues, served.concurrency)

    def ask_to_stop(self) -> None:
        """Claim no more runs. Current calls may finish within the grace period."""
        self.shutdown.request(settings.AGENTOPS_GRACE_S)

    def close(self, timeout_s: float) -> None:
        """Wait until every run is handed back and every thread has ended, at most `timeout_s` and `THREADS_END_S`.

        A thread that has not ended by then, for example because the database does not answer, ends with the process.
        """
        self.ask_to_stop()
        until = time.monotonic() + timeout_s
        while self._keeper.count() and time.monotonic() < until:
            time.sleep(0.05)
        # Only now, because runs need their leases and model calls until they are handed back.
        self._keeper.ask_to_stop()
        self.loop.ask_to_stop()
        # Both threads end at the same time, so they share one deadline.
        until = max(until, time.monotonic() + THREADS_END_S)
        self._keeper.close(until)
        self.loop.close(until)
        if served is not None:
            self._leave()

    def _leave(self) -> None:
        try:
            worker_rows.leave(self.owner)
        except Error as error:
            log.warning("the row of this worker stays for a while: %s", type(error).__name__)
        finally:
            connection.close()


def leave_handler(act: Callable[[], None]) -> None:
    """Call `act` in a new thread, for use in a signal handler.

    A handler may interrupt anything, including itself. Most locks, even those inside events, cannot be acquired
    again by their holder, so the handler would deadlock. Starting a thread this way takes no lock.
    """
    _thread.start_new_thread(act, ())


class Served(NamedTuple):
    """The queues and the concurrency of this process's Celery worker."""

    #: Without the queue of upkeep.
    queues: list[str]
    concurrency: int


#: None in a process that drives single runs, such as a command.
served: Served | None = None
_current: Worker | None = None
_making = threading.Lock()


def current() -> Worker:
    """Return the worker of this process. A forked child makes its own, because it has none of its parent's threads."""
    global _current
    with _making:
        if _current is None or _current.pid != os.getpid():
            _current = Worker()
        return _current


def is_stopping() -> bool:
    """Return whether the worker of this process is ending."""
    return current().shutdown.requested.is_set()
