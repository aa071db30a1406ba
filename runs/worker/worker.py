"""The worker of this process: its leases, its event loop for model calls, and its row with the queues that it serves.

It drives the runs whose messages Celery's pool receives.
"""

from __future__ import annotations

import _thread
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import Error, connection

from agentops.base.backing_services import FIRST
from agentops.base.database_clock import Now
from runs.database_errors import concerns_all
from runs.engine import engine_errors
from runs.engine.leases import LeaseKeeper
from runs.engine.results import Shutdown
from runs.engine.sessions import subagents
from runs.engine.step import drive_run
from runs.engine.turns.model_stream import LoopThread
from runs.errors import MoveRefused
from runs.external.session_agents import SessionAgents
from runs.lifecycle import suspects, suspicion, wake
from runs.lifecycle.suspicion import Suspected
from runs.models import AgentRun, WorkerProcess
from runs.statuses import RunStatus
from runs.worker.packaged.catalogue import AGENTS
from runs.worker.packaged.runner import PackagedRuns
from runs.worker.quarantine import try_alone
from timeline.models import LeaseLost

#: Seconds after which the row of a process that has ended without `leave` is removed.
REMOVED_AFTER_S = 600


def announce(
    name: str, queues: Sequence[str], concurrency: int, *, agents: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Store that this process, the worker `name`, is alive and serves `queues`. Called with each renewal of leases.

    `agents`: of installed packages whose code it has, with its versions.

    Removes the rows of processes that have not been announced for `REMOVED_AFTER_S`. Raises database errors.
    """
    process = WorkerProcess(
        name=name,
        host=socket.gethostname()[:64],
        pid=os.getpid(),
        queues=list(queues),
        agents=agents or None,
        concurrency=concurrency,
        started_at=Now(),
        seen_at=Now(),
    )
    renewed = ["queues", "agents", "concurrency", "seen_at"]
    WorkerProcess.objects.bulk_create([process], update_conflicts=True, unique_fields=["name"], update_fields=renewed)
    WorkerProcess.objects.filter(seen_at__lt=Now() - timedelta(seconds=REMOVED_AFTER_S)).delete()


def leave(name: str) -> None:
    """Remove the row of an ending process."""
    WorkerProcess.objects.filter(pk=name).delete()


def serving(queue: str) -> list[WorkerProcess]:
    """Return the living processes that serve a queue."""
    return [process for process in WorkerProcess.objects.of_site().order_by("name") if queue in process.queues]


log = logging.getLogger(__name__)
subagents.use_records(SessionAgents)
#: Seconds for the threads to end if the runs have used the whole grace period.
THREADS_END_S = 1.0
#: How many suspected runs get a message when a suspected run has finished a step.
NEXT_SUSPECTS = 2


class Worker:
    """Drives runs, each in the thread that calls `drive`, and holds their leases."""

    def __init__(self, *, owner: str = "") -> None:
        self.pid = os.getpid()
        self.owner = owner or f"{socket.gethostname()[:64]}:{self.pid}:{secrets.token_hex(4)}"
        self.shutdown = Shutdown()
        self._keeper = LeaseKeeper(self._announce)
        self.loop = LoopThread()
        self.code = PackagedRuns()
        #: Numbers for the names of separate processes.
        self._child_numbers = count(1)
        #: Held while a separate process tries a run. Only one at a time, because such a process takes seconds to start.
        self._trying_alone = threading.Lock()

    def drive(self, run_id: UUID, expected: Mapping[str, Any] | None = None) -> bool:
        """Claim a run and drive it for a slice in this thread. Returns False if the run was not claimed.

        Claims the run only while its columns have the `expected` values. A suspected run, in which workers have died,
        may be tried in a separate process, or left to a later message: see runs.lifecycle.suspicion.
        """
        if self.shutdown.requested.is_set():
            return False
        AGENTS.all()  # loads packages before the transaction of the claim
        try:
            return drive_run(
                run_id,
                self.owner,
                self._keeper,
                self.loop,
                self.shutdown,
                code=self.code,
                on_progress=self.try_next_suspects,
                expected=expected,
            )
        except Suspected as suspect:
            return self._try_carefully(suspect)
        except Exception:
            # runs.engine.engine_errors handles errors in a step. After an error here the lease expires.
            log.exception("a run was left to the next worker after an error", extra={"run_id": str(run_id)})
            return True

    def _try_carefully(self, suspect: Suspected) -> bool:
        """Set a suspected run aside, try it in a separate process, or leave it. Returns whether it was tried."""
        if suspect.is_alone and suspect.lapsed:
            self._set_aside(suspect)
        elif suspect.is_alone and self._trying_alone.acquire(blocking=False):
            try:
                self._drive_alone(suspect.run_id)
            finally:
                self._trying_alone.release()
            self.try_next_suspects()
            return True
        # If another suspected run is being tried, `try_next_suspects` sends the message again after that.
        return False

    def _drive_alone(self, run_id: UUID) -> None:
        """Drive a run for one step in a separate process, while this thread waits."""
        try:
            try_alone(run_id, f"{self.owner}{suspicion.CHILD_SEPARATOR}{next(self._child_numbers)}", self.shutdown)
        except Exception:
            log.exception("a run could not be tried in a separate process", extra={"run_id": str(run_id)})
        run = AgentRun.objects.filter(pk=run_id, status=RunStatus.QUEUED).first()
        if run is not None and not settings.REDIS_URL:
            # The other process has released the run, but its message could not reach a queue.
            wake.send(run)

    def try_next_suspects(self) -> None:
        """Send the messages of the next suspected runs, which could not be tried at the same time as another one."""
        if self.shutdown.requested.is_set() or not wake.can_send():
            return
        for run in suspects.waiting(NEXT_SUSPECTS):
            wake.send(run, priority=FIRST)

    def _set_aside(self, suspect: Suspected) -> None:
        """Take the run from its dead worker, and let it wait. Never raises."""
        try:
            suspects.set_aside(suspect.run_id, self.owner, wait_s=suspects.pause_s(suspect.deaths))
        except (LeaseLost, MoveRefused):
            return None  # another worker claimed it first
        except Exception as error:
            if not concerns_all(error):
                return engine_errors.note_unclaimed(suspect.run_id, error)
            log.warning("cannot set a run aside: %s", type(error).__name__, extra={"run_id": str(suspect.run_id)})

    def _announce(self) -> None:
        """Store that this process is alive, if it is a Celery worker."""
        if served is not None and not self.shutdown.requested.is_set():
            announce(self.owner, served.queues, served.concurrency, agents=AGENTS.versions())

    def ask_to_stop(self) -> None:
        """Claim no more runs. Running calls may continue within the grace period."""
        self.shutdown.request(settings.AGENTOPS_GRACE_S)

    def close(self, timeout_s: float) -> None:
        """Wait until all runs are handed back and all threads have ended, at most `timeout_s` plus `THREADS_END_S`.

        A thread that has not ended by then, for example because the database does not answer, ends with the process.
        """
        self.ask_to_stop()
        until = time.monotonic() + timeout_s
        while self._keeper.count() and time.monotonic() < until:
            time.sleep(0.05)
        # Only now, because runs need their leases and the event loop until they are handed back.
        self._keeper.ask_to_stop()
        self.loop.ask_to_stop()
        self.code.ask_to_stop()
        # The threads end concurrently, so they share one deadline.
        until = max(until, time.monotonic() + THREADS_END_S)
        self._keeper.close(until)
        self.loop.close(until)
        self.code.close(until)
        if served is not None:
            self._leave()

    def _leave(self) -> None:
        try:
            leave(self.owner)
        except Error as error:
            log.warning("the row of this worker stays for a while: %s", type(error).__name__)
        finally:
            connection.close()


def leave_handler(act: Callable[[], None]) -> None:
    """Call `act` in a new thread, for use in a signal handler.

    A handler may interrupt code that holds a lock, including itself. Most locks, even those inside events, cannot be
    acquired again by their holder, so the handler would deadlock. Starting a thread in this way takes no lock.
    """
    _thread.start_new_thread(act, ())


class Served(NamedTuple):
    """The queues and the concurrency of this process's Celery worker."""

    #: The names of the queues, without that of upkeep.
    queues: list[str]
    concurrency: int


#: None in a process that drives single runs, such as a command.
served: Served | None = None
_current: Worker | None = None
_current_lock = threading.Lock()


def current() -> Worker:
    """Return the worker of this process. A forked child creates a new one, because it has no threads of its parent."""
    global _current
    with _current_lock:
        if _current is None or _current.pid != os.getpid():
            _current = Worker()
        return _current


def is_stopping() -> bool:
    """Whether the worker of this process is ending."""
    return current().shutdown.requested.is_set()
