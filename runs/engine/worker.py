"""The worker of this process: its leases, its event loop, its slots, and the sweep that finds what no hint told of.

May import state, parts and the engine's modules. Works with the broker down: the database says what there is to do.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import Error, connection, connections

from runs import chaos, lifecycle
from runs.engine import policy_waits
from runs.engine.drive import Stopping
from runs.engine.lease import Keeper
from runs.engine.loop import LoopThread
from runs.engine.step import drive_run
from runs.engine.tidying import mail, tidy
from runs.models import AgentRun
from runs.wake import subscribe

log = logging.getLogger(__name__)
BATCH = 50
BETWEEN_LOOKS_S = 0.05


class Worker:
    def __init__(self, *, concurrency: int | None = None) -> None:
        self.pid = os.getpid()
        self.owner = f"{socket.gethostname()[:64]}:{self.pid}:{secrets.token_hex(4)}"
        self.stopping = Stopping()
        self._concurrency = concurrency or settings.AGENTOPS_CONCURRENCY
        self._slots = threading.BoundedSemaphore(self._concurrency)
        self._keeper = Keeper()
        self._loop = LoopThread()
        self._driving: set[UUID] = set()
        self._lock = threading.Lock()
        self._look = threading.Event()
        self._threads: list[threading.Thread] = []
        self._unsubscribe: Callable[[], None] | None = None

    def drive(self, run_id: UUID) -> bool:
        """Drive a run on this thread if a slot is free and nobody else has it; False where it is left alone."""
        if self.stopping.asked.is_set() or not self._slots.acquire(blocking=False):
            return False  # it stays queued: whoever has a free slot finds it
        try:
            return self._drive(run_id)
        finally:
            self._slots.release()
            self._look.set()

    def _drive(self, run_id: UUID) -> bool:
        with self._lock:
            if run_id in self._driving:
                return False
            self._driving.add(run_id)
        try:
            return drive_run(run_id, self.owner, self._keeper, self._loop, self.stopping)
        except Exception:
            # The lease runs out and another worker goes on from the rows; what is wrong must be seen here.
            log.exception("a step failed outside of any rule", extra={"run_id": str(run_id)})
            return True
        finally:
            with self._lock:
                self._driving.discard(run_id)

    def sweep_once(self, pool: ThreadPoolExecutor | None = None) -> int:
        """End waits whose time has come, and drive what is runnable; the number of runs taken up."""
        lifecycle.end_waits()
        policy_waits.end_waits()
        taken = 0
        for run_id in AgentRun.objects.runnable().values_list("pk", flat=True)[:BATCH]:
            chaos.point("CP32")
            if self.stopping.asked.is_set() or self.free() <= 0:
                break
            if pool is None:
                taken += self.drive(run_id)
            else:
                pool.submit(self._drive_and_close, run_id)
                taken += 1
            chaos.point("CP33")
        return taken

    def free(self) -> int:
        with self._lock:
            return self._concurrency - len(self._driving)

    def start_sweeping(self) -> None:
        """Sweep every few seconds, and at once when a slot becomes free or this process queues a run, until the
        worker ends."""
        self._unsubscribe = subscribe(self._look.set)
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

    def _drive_and_close(self, run_id: UUID) -> None:
        try:
            self.drive(run_id)
        finally:
            connections.close_all()

    def ask_to_stop(self) -> None:
        """Take nothing up any more; what runs may finish its current await within the grace."""
        self.stopping.ask(settings.AGENTOPS_GRACE_S)
        self._look.set()

    def close(self, timeout_s: float) -> None:
        """Wait until every run is handed back, at most `timeout_s`."""
        self.ask_to_stop()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        until = time.monotonic() + timeout_s
        while self._keeper.held() and time.monotonic() < until:
            time.sleep(0.05)
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.1))
        self._keeper.close()
        self._loop.close()


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
