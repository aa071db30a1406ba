"""The worker of this process: its leases, its event loop, its slots, and the sweep.

It works without the broker, because the database says which runs are ready.
"""

from __future__ import annotations

import _thread
import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import Error, connection, connections

from runs import chaos
from runs.database_errors import concerns_all
from runs.engine import engine_errors
from runs.engine.event_loop import LoopThread
from runs.engine.leases import LeaseKeeper
from runs.engine.policy import due_resumes
from runs.engine.sessions import subagent_records
from runs.engine.shutdown import Shutdown
from runs.engine.step import drive_run
from runs.errors import MoveRefused
from runs.external.sessions.session_agents import SessionAgents
from runs.external.silence import notice_silence
from runs.lifecycle import approval_decisions, children, suspects, transitions
from runs.lifecycle.suspects import Candidate
from runs.worker.exports import export
from runs.worker.flow_thread import advance_flows
from runs.worker.housekeeping import delete_projects, evaluate_alerts, index_texts, mail, send_alerts, settle, tidy
from runs.worker.quarantine import Gate, try_alone
from runs.worker.schema_gate import is_migrated
from runs.worker.uploaded_files import import_uploaded_files
from runs.worker.watch import Watch
from timeline.errors import LeaseLost

log = logging.getLogger(__name__)
subagent_records.use(SessionAgents)
BATCH = 50
MIN_SWEEP_PAUSE_S = 0.05
#: How long a suspected run without a finished step keeps the next one waiting, as a share of a lease. A run that kills
#: workers does so early, because the tool that a dead worker had started is started again first.
TRIAL = 0.5
#: Seconds for the threads to end when the runs have taken all the time that there was.
THREADS_END_S = 1.0


class Worker:
    """Executes the runs of this process, up to `concurrency` at a time."""

    def __init__(self, *, concurrency: int | None = None, owner: str = "") -> None:
        self.pid = os.getpid()
        self.owner = owner or f"{socket.gethostname()[:64]}:{self.pid}:{secrets.token_hex(4)}"
        self.shutdown = Shutdown()
        self._concurrency = concurrency or settings.AGENTOPS_CONCURRENCY
        self._keeper = LeaseKeeper()
        self.loop = LoopThread()
        #: The runs that have a slot.
        self._driving: set[UUID] = set()
        self._lock = threading.Lock()
        self._look = threading.Event()
        self._uploads, self._flows = Watch(self.shutdown), Watch(self.shutdown)
        #: For suspected runs: see runs.lifecycle.suspects.
        self._on_trial = Gate(settings.AGENTOPS_LEASE_S * TRIAL)
        self._alone = Gate(settings.AGENTOPS_SLICE_S)
        self._tries = count(1)
        self._threads: list[threading.Thread] = []

    def on_hint(self, run_id: UUID) -> bool:
        """Look for ready runs, because a hint came. Returns False if no slot is free.

        The hint does not say which run is next: the first one in the order of the queue is.
        """
        self.look()
        return self.free() > 0 and not self.shutdown.requested.is_set()

    def look(self) -> None:
        """Sweep now, in the sweep thread."""
        self._look.set()

    def look_for_uploads(self) -> None:
        """Look for uploaded files now, in their thread."""
        self._uploads.look()

    def look_for_flows(self) -> None:
        """Look for flow runs that are due now, in their thread."""
        self._flows.look()

    def drive(self, run_id: UUID) -> bool:
        """Drive a run in this thread. Returns False if no slot is free or this worker has the run already."""
        if not self._reserve_slot(run_id):
            return False
        return self._drive(run_id)

    def _reserve_slot(self, run_id: UUID) -> bool:
        with self._lock:
            if self.shutdown.requested.is_set() or run_id in self._driving or len(self._driving) >= self._concurrency:
                return False
            self._driving.add(run_id)
            return True

    def _drive(self, run_id: UUID) -> bool:
        """Drive a run in its slot."""
        try:
            progress = partial(self._on_progress, run_id)
            return drive_run(run_id, self.owner, self._keeper, self.loop, self.shutdown, on_progress=progress)
        except Exception:
            # runs.engine.engine_errors handles errors in a step. After this one the lease runs out.
            log.exception("a run was left to the next worker after an error", extra={"run_id": str(run_id)})
            return True
        finally:
            self._free_slot(run_id)

    def _drive_alone(self, run_id: UUID) -> None:
        """Drive a run in a process of its own. It keeps its slot, so there are never more processes than slots."""
        try:
            try_alone(run_id, f"{self.owner}{transitions.CHILD_SEPARATOR}{next(self._tries)}", self.shutdown)
        except Exception:
            log.exception("a run could not be tried in a separate process", extra={"run_id": str(run_id)})
        finally:
            self._free_slot(run_id)

    def _free_slot(self, run_id: UUID) -> None:
        for gate in (self._on_trial, self._alone):
            gate.leave(run_id)
        self._release_slot(run_id)
        self._look.set()

    def _release_slot(self, run_id: UUID) -> None:
        with self._lock:
            self._driving.discard(run_id)

    def _on_progress(self, run_id: UUID) -> None:
        """Let the next suspected run be tried: this one has got past the step in which its worker died."""
        if self._on_trial.leave(run_id):
            self._look.set()

    def sweep_once(self, pool: ThreadPoolExecutor | None = None) -> int:
        """End waits whose time has come, and drive ready runs. Returns how many runs were taken."""
        transitions.end_waits()
        children.continue_parents()
        due_resumes.end_waits()
        approval_decisions.expire_due()
        notice_silence()
        if self.free() <= 0:
            # The search reads every running run of the site. A slot that becomes free starts a sweep of its own.
            return 0
        first = suspects.candidates(BATCH)
        count = self._take_all(first, pool)
        if len(first) == BATCH and self.free() > 0:
            # Suspects that have to wait must not hide the runs behind them.
            count += self._take_all(suspects.candidates(BATCH, clear_only=True), pool)
        return count

    def _take_all(self, candidates: list[Candidate], pool: ThreadPoolExecutor | None) -> int:
        count = 0
        for candidate in candidates:
            chaos.point("sweep.run_seen")
            if self.shutdown.requested.is_set() or self.free() <= 0:
                break
            count += self._take(candidate, pool)
            chaos.point("sweep.run_driven")
        return count

    def _take(self, candidate: Candidate, pool: ThreadPoolExecutor | None) -> bool:
        """Give a run a slot and drive it, as carefully as it has to be. Returns False if it has to wait."""
        run_id, lapsed, deaths = candidate
        if not self._reserve_slot(run_id):
            return False  # this worker has the run already
        is_alone = deaths >= suspects.ALONE_FROM
        gate = self._alone if is_alone else self._on_trial
        # Suspected runs wait, and are tried one at a time.
        if deaths and ((is_alone and lapsed) or not gate.enter(run_id)):
            try:
                if lapsed:
                    self._set_aside(candidate)
            finally:
                self._release_slot(run_id)
            return False
        drive: Callable[[UUID], object] = self._drive_alone if is_alone else self._drive
        if pool is None:
            return drive(run_id) is not False
        once = threading.Lock()
        try:
            pool.submit(close_after, partial(_drive_once, once, drive), run_id)
        except RuntimeError:
            # No thread can be started now. The pool keeps the call for a thread that becomes free, without the slot;
            # the next sweep tries again.
            if once.acquire(blocking=False):
                gate.leave(run_id)
                self._release_slot(run_id)
            raise
        return True

    def _set_aside(self, suspect: Candidate) -> None:
        try:
            suspects.set_aside(suspect.run_id, self.owner, wait_s=suspects.pause_s(suspect.deaths))
        except (LeaseLost, MoveRefused):
            return  # another worker was faster
        except Exception as error:
            if concerns_all(error):
                raise
            # The other runs of the sweep must not wait because of this one.
            engine_errors.note_unclaimed(suspect.run_id, error)

    def free(self) -> int:
        with self._lock:
            return self._concurrency - len(self._driving)

    def start_sweeping(self) -> None:
        """Sweep every few seconds, and at once when a slot becomes free or a hint comes, until the worker ends.

        A second call does nothing: Celery's pool of one thread also announces itself as a child.
        """
        if self._threads:
            return
        self._threads = [threading.Thread(target=self._begin, name="begin", daemon=True)]
        self._threads[0].start()

    def _begin(self) -> None:
        """Wait for the schema of this version, then start the other threads: on another one, results could be lost."""
        while not is_migrated():
            _touch_alive_file()
            if self.shutdown.requested.wait(settings.AGENTOPS_SWEEP_S):
                return
        threads = [
            threading.Thread(target=self._sweep, name="sweep", daemon=True),
            threading.Thread(target=tidy, args=[self.shutdown], name="tidy", daemon=True),
            threading.Thread(target=delete_projects, args=[self.shutdown], name="projects", daemon=True),
            threading.Thread(target=settle, args=[self.shutdown], name="settle", daemon=True),
            threading.Thread(target=import_uploaded_files, args=[self._uploads], name="uploads", daemon=True),
            threading.Thread(target=advance_flows, args=[self._flows], name="flows", daemon=True),
            threading.Thread(target=index_texts, args=[self.shutdown], name="index", daemon=True),
            threading.Thread(target=evaluate_alerts, args=[self.shutdown], name="alerts", daemon=True),
            threading.Thread(target=send_alerts, args=[self.shutdown], name="send-alerts", daemon=True),
            threading.Thread(target=export, args=[self.shutdown], name="export", daemon=True),
        ]
        if settings.AGENTOPS_EMAIL:
            threads.append(threading.Thread(target=mail, args=[self.shutdown], name="mail", daemon=True))
        for thread in threads:
            self._start(thread)

    def _start(self, thread: threading.Thread) -> None:
        """Start a thread, if necessary as soon as the machine has room for it: without it, work would wait for ever."""
        while not self.shutdown.requested.is_set():
            try:
                thread.start()
            except RuntimeError as error:
                log.warning("the thread %s of the worker waits: %s", thread.name, error)
                self.shutdown.requested.wait(settings.AGENTOPS_SWEEP_S)
            else:
                self._threads.append(thread)
                return

    def _sweep(self) -> None:
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="swept") as pool:
            while not self.shutdown.requested.is_set():
                try:
                    self.sweep_once(pool)
                except Error as error:
                    log.warning("the sweep cannot read the database: %s", type(error).__name__)
                except Exception:
                    # If this thread ended, the worker would take no run any more, and nobody would notice.
                    log.exception("the sweep failed")
                finally:
                    connection.close()
                _touch_alive_file()
                self._rest(time.monotonic())

    def _rest(self, swept: float) -> None:
        """Wait until the next sweep. The first request to look is answered at once, many of them at a limited rate."""
        # Jitter, so that workers that were started together do not query together.
        period = settings.AGENTOPS_SWEEP_S * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load only
        self._look.wait(period)
        self.shutdown.requested.wait(max(swept + min(MIN_SWEEP_PAUSE_S, period) - time.monotonic(), 0))
        self._look.clear()

    def ask_to_stop(self) -> None:
        """Claim no more runs. Current calls may finish within the grace period."""
        self.shutdown.request(settings.AGENTOPS_GRACE_S)
        self._look.set()
        self._uploads.look()
        self._flows.look()

    def close(self, timeout_s: float) -> None:
        """Wait until every run is handed back and every thread has ended, at most `timeout_s` and `THREADS_END_S`.

        A thread that has not ended by then, for example because the database does not answer, ends with the process.
        """
        self.ask_to_stop()
        until = time.monotonic() + timeout_s
        while self.free() < self._concurrency and time.monotonic() < until:
            time.sleep(0.05)
        # Only now: runs need their leases and their model calls until they are handed back.
        self._keeper.ask_to_stop()
        self.loop.ask_to_stop()
        # All threads end at the same time, so they share one deadline.
        until = max(until, time.monotonic() + THREADS_END_S)
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))
        self._keeper.close(until)
        self.loop.close(until)


def leave_handler(act: Callable[[], None]) -> None:
    """Call `act` in a new thread, for use in a signal handler.

    A handler may interrupt anything, including itself. Most locks, even those inside events, cannot be acquired
    again by their holder, so the handler would deadlock. Starting a thread this way takes no lock.
    """
    _thread.start_new_thread(act, ())


def _drive_once(once: threading.Lock, drive: Callable[[UUID], object], run_id: UUID) -> None:
    """Drive a run, unless somebody else has acquired `once`."""
    if once.acquire(blocking=False):
        drive(run_id)


def close_after(drive: Callable[[UUID], object], run_id: UUID) -> None:
    """Drive a run in a thread, and close its database connections afterwards."""
    try:
        drive(run_id)
    finally:
        connections.close_all()


def _touch_alive_file() -> None:
    """Touch the file that tells a monitor that this process works. Errors do not end the work."""
    if not settings.AGENTOPS_ALIVE_FILE:
        return
    try:
        Path(settings.AGENTOPS_ALIVE_FILE).touch()
    except OSError as error:
        log.warning("AGENTOPS_ALIVE_FILE cannot be touched: %s", error.strerror)


_current: Worker | None = None
_making = threading.Lock()


def current() -> Worker:
    """Return the worker of this process. A forked child makes its own, because it has none of its parent's threads."""
    global _current
    with _making:
        if _current is None or _current.pid != os.getpid():
            _current = Worker()
        return _current
