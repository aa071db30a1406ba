"""The leases of the runs that this process holds, and the thread that renews them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

from django.conf import settings
from django.db import connection

from agentops.base.database_clock import clock
from runs.engine import renewals
from timeline import log as timeline_log
from timeline.errors import LeaseLost

log = logging.getLogger(__name__)
#: The fraction of a lease's time for which a fenced write proves that the lease is held: 0.25 s with the defaults.
PROOF_PART = 1 / 80
#: Locks for claims, shared by the runs: a claim takes milliseconds.
CLAIM_LOCKS = 64


@dataclass(eq=False)
class Lease:
    """A worker's lease on a run. `lost` is set once another worker holds the run, or may hold it."""

    run_id: UUID
    epoch: int
    valid_until: float
    lost: threading.Event = field(default_factory=threading.Event)
    #: `clock()` before the last write that fails if the run was taken over: see runs.engine.safe_commit.
    proven_at: float = float("-inf")
    #: Numbers for event IDs, unique within the epoch.
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def check(self) -> None:
        """Raise `LeaseLost` if this process must no longer act on the run."""
        if self.lost.is_set() or clock() > self.valid_until:
            self.lost.set()
            raise LeaseLost(f"the lease of run {self.run_id} at epoch {self.epoch} is lost")

    def prove(self) -> None:
        """Raise `LeaseLost` if another worker has the run. A recent fenced write is sufficient proof that none has."""
        self.check()
        if clock() - self.proven_at > settings.AGENTOPS_LEASE_S * PROOF_PART:
            timeline_log.require_epoch(self.run_id, self.epoch)


class LeaseKeeper:
    """Renews all leases of the process from one thread, on one database connection.

    Calls `on_period` in that thread, at its start and after each renewal, as a sign that the process is alive.
    """

    def __init__(self, on_period: Callable[[], None] | None = None) -> None:
        self._on_period = on_period
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._claims = [threading.Lock() for _ in range(CLAIM_LOCKS)]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
        self._thread.start()

    def one_claim(self, run_id: UUID) -> threading.Lock:
        """Return the lock under which a thread claims a run and begins to keep its lease.

        Two messages may name one run, and all threads claim in the name of this process. A thread whose claim got no
        answer must see whether another thread's claim was committed.
        """
        return self._claims[hash(run_id) % CLAIM_LOCKS]

    def holds(self, run_id: UUID, epoch: int) -> bool:
        """Return whether a thread of this process keeps the lease."""
        with self._lock:
            return any((lease.run_id, lease.epoch) == (run_id, epoch) for lease in self._leases)

    @contextmanager
    def keep(self, run_id: UUID, epoch: int, claimed_at: float) -> Iterator[Lease]:
        """Keep renewing a lease inside the `with` block. `claimed_at` is the value of `clock()` before the claim."""
        lease = Lease(run_id, epoch, claimed_at + settings.AGENTOPS_LEASE_S)
        with self._lock:
            self._leases.add(lease)
        try:
            yield lease
        finally:
            with self._lock:
                self._leases.discard(lease)

    def count(self) -> int:
        with self._lock:
            return len(self._leases)

    def ask_to_stop(self) -> None:
        """Stop renewing leases."""
        self._closing.set()

    def close(self, until: float) -> None:
        """Stop, and wait for the thread until a time of `time.monotonic()`."""
        self.ask_to_stop()
        self._thread.join(max(until - time.monotonic(), 0))

    def _run(self) -> None:
        self._announce()
        next_at = time.monotonic() + settings.AGENTOPS_RENEW_S
        while not self._closing.wait(max(next_at - time.monotonic(), 0)):
            next_at = time.monotonic() + settings.AGENTOPS_RENEW_S
            self._renew(next_at)
            self._announce()
        connection.close()

    def _announce(self) -> None:
        try:
            if self._on_period is not None:
                self._on_period()
        except Exception as error:  # if this thread ended, the process would lose all its runs
            connection.close()
            log.warning("cannot say that this worker lives: %s", type(error).__name__)

    def _renew(self, until: float) -> None:
        """Renew all leases; then wait for locked rows until a time of `time.monotonic()`."""
        with self._lock:
            leases = {(lease.run_id, lease.epoch): lease for lease in self._leases}
        locked = self._renew_unlocked(leases) if leases else []
        for index, lease in enumerate(locked):
            if self._closing.is_set():
                return
            _renew_locked(lease, (until - time.monotonic()) / (len(locked) - index))

    def _renew_unlocked(self, leases: Mapping[renewals.Held, Lease]) -> list[Lease]:
        """Renew leases, on a new connection if the old one is broken. Returns the leases with locked rows."""
        for last in (False, True):
            began = clock()
            try:
                result = renewals.renew_unlocked(leases)
            except Exception as error:  # if this thread ended, the process would lose all its runs
                connection.close()
                # None is lost yet: no other worker may take a run before the stored end of its lease.
                if last:
                    log.warning("cannot renew %d leases: %s", len(leases), type(error).__name__)
                continue
            for key in result.renewed:
                leases[key].valid_until = began + settings.AGENTOPS_LEASE_S
            for key in result.lost:
                leases[key].lost.set()
            return [leases[key] for key in leases.keys() - result.renewed - result.lost]
        return []


def _renew_locked(lease: Lease, wait_s: float) -> None:
    """Renew a lease whose row is locked, for example by a suspended process. Wait at most `wait_s` for the lock."""
    began = clock()
    try:
        if renewals.renew_locked(lease.run_id, lease.epoch, wait_s=wait_s):
            lease.valid_until = began + settings.AGENTOPS_LEASE_S
        else:
            lease.lost.set()
    except Exception as error:
        connection.close()
        log.warning("cannot renew: %s", type(error).__name__, extra={"run_id": str(lease.run_id)})
