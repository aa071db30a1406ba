"""The leases of the runs that this process holds, and the thread that renews them.

One SQL statement renews all leases of a process, except those whose rows are locked; these are renewed one by one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from operator import or_
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q

from agentops.base.database_clock import clock
from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus
from timeline import log as timeline_log
from timeline.models import LeaseLost

#: A lease: the ID of its run, and its epoch.
Held = tuple[UUID, int]
#: Leases in one statement on SQLite, whose expressions have a depth of at most 1,000.
ONE_STATEMENT = 500
#: A single statement, because a process that is suspended between two statements would keep the locks of the first. The
#: end of the lease is computed as in runs.lifecycle.transitions.lease_end.
_RENEW_UNLOCKED = """
WITH unlocked AS MATERIALIZED (
  SELECT r.id FROM agent_runs r
  JOIN unnest(%s::uuid[], %s::integer[]) AS held (id, epoch) ON held.id = r.id AND held.epoch = r.lease_epoch
  WHERE r.status = %s FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE agent_runs r SET lease_expires_at = STATEMENT_TIMESTAMP() + make_interval(secs => %s)
FROM unlocked WHERE r.id = unlocked.id RETURNING r.id, r.lease_epoch
"""


@dataclass(frozen=True)
class Renewals:
    """The results of a renewal. Leases in neither set were skipped, because their rows are locked."""

    renewed: frozenset[Held]
    #: Another worker has the run, or the run is no longer running.
    lost: frozenset[Held]


def renew_unlocked(leases: Collection[Held]) -> Renewals:
    """Extend the leases whose rows are not locked."""
    if connection.vendor != "postgresql":
        return _renew_all(leases)
    with connection.cursor() as cursor:
        run_ids, epochs = [run_id for run_id, _ in leases], [epoch for _, epoch in leases]
        cursor.execute(_RENEW_UNLOCKED, [run_ids, epochs, RunStatus.RUNNING.value, settings.AGENTOPS_LEASE_S])
        renewed = frozenset(cursor.fetchall())
    return Renewals(renewed, _not_held(frozenset(leases) - renewed))


def renew_locked(run_id: UUID, epoch: int, *, wait_s: float) -> bool:
    """Extend a lease whose row is locked, on PostgreSQL. Returns False if another worker has the run.

    Raises `OperationalError` if the row is still locked after `wait_s` seconds.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            # At least 1, because 0 would mean no limit.
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{max(round(wait_s * 1000), 1)}ms"])
        return transitions.renew(run_id, epoch)


def _renew_all(leases: Collection[Held]) -> Renewals:
    """Extend the leases on SQLite, which locks the whole database, so no row is skipped."""
    renewed = 0
    in_order = list(leases)
    for start in range(0, len(in_order), ONE_STATEMENT):
        some = in_order[start : start + ONE_STATEMENT]
        held = reduce(or_, (Q(pk=run_id, lease_epoch=epoch) for run_id, epoch in some))
        rows = AgentRun.objects.filter(held, status=RunStatus.RUNNING)
        renewed += rows.update(lease_expires_at=transitions.lease_end())
    if renewed == len(leases):
        return Renewals(frozenset(leases), frozenset())
    lost = _not_held(frozenset(leases))
    return Renewals(frozenset(leases) - lost, lost)


def _not_held(leases: frozenset[Held]) -> frozenset[Held]:
    """Return the leases that another worker has now, or that were released."""
    if not leases:
        return leases
    rows = AgentRun.objects.filter(pk__in=[run_id for run_id, _ in leases], status=RunStatus.RUNNING)
    return leases - frozenset(rows.values_list("pk", "lease_epoch"))


log = logging.getLogger(__name__)
#: How long after a fenced write the lease counts as proven, as a fraction of its duration: 0.25 s with the defaults.
PROOF_PART = 1 / 80
#: Locks for claims, shared by the runs: a claim takes milliseconds.
CLAIM_LOCKS = 64


@dataclass(eq=False)
class Lease:
    """A worker's lease on a run. `lost` is set once another worker holds the run, or may hold it."""

    run_id: UUID
    epoch: int
    #: Time of `clock()` until which no other worker may claim the run.
    valid_until: float
    lost: threading.Event = field(default_factory=threading.Event)
    #: Time of `clock()` before the last fenced write. A fenced write fails if the run was taken over.
    proven_at: float = float("-inf")
    #: Numbers for event IDs, unique within the epoch.
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def check(self) -> None:
        """Raise `LeaseLost` if this process must no longer act on the run."""
        if self.lost.is_set() or clock() > self.valid_until:
            self.lost.set()
            raise LeaseLost(f"the lease of run {self.run_id} at epoch {self.epoch} is lost")

    def prove(self) -> None:
        """Raise `LeaseLost` if another worker has the run. Sends no query if a fenced write has just succeeded."""
        self.check()
        if clock() - self.proven_at > settings.AGENTOPS_LEASE_S * PROOF_PART:
            timeline_log.require_epoch(self.run_id, self.epoch)


class LeaseKeeper:
    """Renews all leases of the process from one thread, on one database connection.

    The thread calls `on_period` when it starts and after each renewal, to announce that the process is alive.
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

        Two messages may name the same run, and all threads claim it as the same owner. So if the database did not
        answer a claim, the owner alone does not tell which thread's claim was committed.
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
        """Tell the thread to stop renewing, without waiting for it."""
        self._closing.set()

    def close(self, until: float) -> None:
        """Stop the thread, and wait for its end until a time of `time.monotonic()`."""
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

    def _renew_unlocked(self, leases: Mapping[Held, Lease]) -> list[Lease]:
        """Renew leases, with a second attempt on a new connection. Returns the leases whose rows are locked."""
        for is_last_attempt in (False, True):
            began = clock()
            try:
                result = renew_unlocked(leases)
            except Exception as error:  # if this thread ended, the process would lose all its runs
                connection.close()
                # No lease is lost yet: other workers may only take a run after the stored end of its lease.
                if is_last_attempt:
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
        if renew_locked(lease.run_id, lease.epoch, wait_s=wait_s):
            lease.valid_until = began + settings.AGENTOPS_LEASE_S
        else:
            lease.lost.set()
    except Exception as error:
        connection.close()
        log.warning("cannot renew: %s", type(error).__name__, extra={"run_id": str(lease.run_id)})
