"""The worker of this process: its leases, its event loop, its slots, and the sweep that finds what no hint told of.

Works with the broker down: the database says what there is to do.
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
from runs.engine.event_loop import LoopThread
from runs.engine.leases import Keeper
from runs.engine.policy import due_resumes
from runs.engine.step import drive_run
from runs.engine.stopping import Stopping
from runs.errors import MoveRefused
from runs.lifecycle import suspects, transitions
from runs.lifecycle.suspects import Candidate
from runs.worker.housekeeping import mail, tidy
from runs.worker.quarantine import Gate, try_alone
from timeline.errors import LeaseLost

log = logging.getLogger(__name__)
BATCH = 50
BETWEEN_LOOKS_S = 0.05
#: Of a lease: how long a run that a worker died with keeps the next such run out, if it makes no step. What ends
#: workers mostly does so at once, because a tool that a dead worker has started is started again before anything else.
TRIAL = 0.5


class Worker:
    def __init__(self, *, concurrency: int | None = None, owner: str = "") -> None:
        self.pid = os.getpid()
        self.owner = owner or f"{socket.gethostname()[:64]}:{self.pid}:{secrets.token_hex(4)}"
        self.stopping = Stopping()
        self._concurrency = concurrency or settings.AGENTOPS_CONCURRENCY
        self._keeper = Keeper()
        self.loop = LoopThread()
        #: The runs that have a slot, from the moment on at which it was given to them.
        self._driving: set[UUID] = set()
        self._lock = threading.Lock()
        self._look = threading.Event()
        #: For runs under suspicion: see runs.lifecycle.suspects.
        self._on_trial = Gate(settings.AGENTOPS_LEASE_S * TRIAL)
        self._alone = Gate(settings.AGENTOPS_SLICE_S)
        self._tries = count(1)
        self._threads: list[threading.Thread] = []

    def hear(self, run_id: UUID) -> bool:
        """Look for work, because a hint says that there is some; False where no slot is free for it.

        The hint does not say what is driven next: that is the first in the database's order.
        """
        self.look()
        return self.free() > 0 and not self.stopping.asked.is_set()

    def look(self) -> None:
        """Sweep now, on the thread that does so."""
        self._look.set()

    def drive(self, run_id: UUID) -> bool:
        """Drive a run on this thread if a slot is free and nobody else has it; False where it is left alone."""
        if not self._give_slot(run_id):
            return False
        return self._drive(run_id)

    def _give_slot(self, run_id: UUID) -> bool:
        with self._lock:
            if self.stopping.asked.is_set() or run_id in self._driving or len(self._driving) >= self._concurrency:
                return False
            self._driving.add(run_id)
            return True

    def _drive(self, run_id: UUID) -> bool:
        """In the slot that it was given."""
        try:
            progress = partial(self._has_made_a_step, run_id)
            return drive_run(run_id, self.owner, self._keeper, self.loop, self.stopping, on_progress=progress)
        except Exception:
            # The lease runs out and another worker goes on from the rows; what is wrong must be seen here.
            log.exception("a step failed outside of any rule", extra={"run_id": str(run_id)})
            return True
        finally:
            self._free_slot(run_id)

    def _drive_alone(self, run_id: UUID) -> None:
        """Not in this process, but its slot here is taken: so there are never more processes than slots."""
        try:
            try_alone(run_id, f"{self.owner}{transitions.OF_A_WORKER}{next(self._tries)}", self.stopping)
        except Exception:
            log.exception("a run could not be tried in a process of its own", extra={"run_id": str(run_id)})
        finally:
            self._free_slot(run_id)

    def _free_slot(self, run_id: UUID) -> None:
        for gate in (self._on_trial, self._alone):
            gate.leave(run_id)
        self._take_slot_back(run_id)
        self._look.set()

    def _take_slot_back(self, run_id: UUID) -> None:
        with self._lock:
            self._driving.discard(run_id)

    def _has_made_a_step(self, run_id: UUID) -> None:
        """It has got past the step in which its worker died: whatever ends this process now, the next may be tried."""
        if self._on_trial.leave(run_id):
            self._look.set()

    def sweep_once(self, pool: ThreadPoolExecutor | None = None) -> int:
        """End waits whose time has come, and drive what is runnable; the number of runs taken up."""
        transitions.end_waits()
        due_resumes.end_waits()
        first = suspects.candidates(BATCH)
        taken = self._take_all(first, pool)
        if len(first) == BATCH and self.free() > 0:
            # Suspects that have to wait shall not hide who comes after them.
            taken += self._take_all(suspects.candidates(BATCH, clear_only=True), pool)
        return taken

    def _take_all(self, candidates: list[Candidate], pool: ThreadPoolExecutor | None) -> int:
        taken = 0
        for candidate in candidates:
            chaos.point("sweep.run_seen")
            if self.stopping.asked.is_set() or self.free() <= 0:
                break
            taken += self._take(candidate, pool)
            chaos.point("sweep.run_driven")
        return taken

    def _take(self, candidate: Candidate, pool: ThreadPoolExecutor | None) -> bool:
        """Give the run a slot, and drive it as carefully as it must be; False where it has to wait."""
        run_id, lapsed, deaths = candidate
        if not self._give_slot(run_id):
            return False  # this worker has it already
        is_alone = deaths >= suspects.ALONE_FROM
        gate = self._alone if is_alone else self._on_trial
        # After a pause, and one after the other.
        if deaths and ((is_alone and lapsed) or not gate.enter(run_id)):
            if lapsed:
                self._set_aside(candidate)
            self._take_slot_back(run_id)
            return False
        drive: Callable[[UUID], object] = self._drive_alone if is_alone else self._drive
        if pool is None:
            return drive(run_id) is not False
        pool.submit(close_after, drive, run_id)
        return True

    def _set_aside(self, suspect: Candidate) -> None:
        try:
            suspects.set_aside(suspect.run_id, self.owner, wait_s=suspects.pause_s(suspect.deaths))
        except (LeaseLost, MoveRefused):
            return  # another worker was faster

    def free(self) -> int:
        with self._lock:
            return self._concurrency - len(self._driving)

    def start_sweeping(self) -> None:
        """Sweep every few seconds, and at once when a slot becomes free or a hint comes, until the worker ends."""
        self._threads = [
            threading.Thread(target=self._sweep, name="sweep", daemon=True),
            threading.Thread(target=tidy, args=[self.stopping], name="tidy", daemon=True),
        ]
        if settings.AGENTOPS_EMAIL:
            self._threads.append(threading.Thread(target=mail, args=[self.stopping], name="mail", daemon=True))
        for thread in self._threads:
            thread.start()

    def _sweep(self) -> None:
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="swept") as pool:
            while not self.stopping.asked.is_set():
                try:
                    self.sweep_once(pool)
                except Error as error:
                    log.warning("the sweep cannot read the database: %s", type(error).__name__)
                finally:
                    connection.close()
                _show_life()
                self._rest(time.monotonic())

    def _rest(self, swept: float) -> None:
        """Until the next sweep. The first call to look is answered at once, a stream of them at a bounded rate."""
        # Jitter: workers that were started together shall not ask together.
        period = settings.AGENTOPS_SWEEP_S * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load only
        self._look.wait(period)
        self.stopping.asked.wait(max(swept + min(BETWEEN_LOOKS_S, period) - time.monotonic(), 0))
        self._look.clear()

    def ask_to_stop(self) -> None:
        """Take nothing up any more; what runs may finish its current await within the grace."""
        self.stopping.ask(settings.AGENTOPS_GRACE_S)
        self._look.set()

    def close(self, timeout_s: float) -> None:
        """Wait until every run is handed back, at most `timeout_s`."""
        self.ask_to_stop()
        until = time.monotonic() + timeout_s
        while self.free() < self._concurrency and time.monotonic() < until:
            time.sleep(0.05)
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.1))
        self._keeper.close()
        self.loop.close()


def leave_handler(act: Callable[[], None]) -> None:
    """Run what a signal's handler has to do on a thread of its own.

    A handler may interrupt anything, also itself. Most locks, those inside of events too, cannot be taken again by
    their holder: the handler would wait for ever for the code that it has interrupted. This start takes no lock.
    """
    _thread.start_new_thread(act, ())


def close_after(drive: Callable[[UUID], object], run_id: UUID) -> None:
    """Drive a run on a thread of its own, whose connections nobody else would close."""
    try:
        drive(run_id)
    finally:
        connections.close_all()


def _show_life() -> None:
    """For whoever watches this process. A file that cannot be written must not end the work."""
    if not settings.AGENTOPS_ALIVE_FILE:
        return
    try:
        Path(settings.AGENTOPS_ALIVE_FILE).touch()
    except OSError as error:
        log.warning("AGENTOPS_ALIVE_FILE cannot be touched: %s", error.strerror)


_current: Worker | None = None
_making = threading.Lock()


def current() -> Worker:
    """This process's worker; a forked child has no thread of its parent's and makes its own."""
    global _current
    with _making:
        if _current is None or _current.pid != os.getpid():
            _current = Worker()
        return _current
