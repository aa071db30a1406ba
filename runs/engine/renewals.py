"""SQL statements that renew leases: all of a process at once, without waiting for locked rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from operator import or_
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q

from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus

#: A lease: the ID of its run, and its epoch.
Held = tuple[UUID, int]
#: A single statement, because a process can be suspended between two statements and would keep the lock. The end of the
#: lease is computed as in runs.lifecycle.transitions.lease_end.
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
    #: Another worker has the run, or it is no longer running.
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

    Raises `OperationalError` if the row is still locked after `wait_s`.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            # 0 would mean no limit.
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{max(round(wait_s * 1000), 1)}ms"])
        return transitions.renew(run_id, epoch)


def _renew_all(leases: Collection[Held]) -> Renewals:
    """Extend the leases on SQLite, which locks the whole database and no rows."""
    held = reduce(or_, (Q(pk=run_id, lease_epoch=epoch) for run_id, epoch in leases))
    rows = AgentRun.objects.filter(held, status=RunStatus.RUNNING)
    if rows.update(lease_expires_at=transitions.lease_end()) == len(leases):
        return Renewals(frozenset(leases), frozenset())
    lost = _not_held(frozenset(leases))
    return Renewals(frozenset(leases) - lost, lost)


def _not_held(leases: frozenset[Held]) -> frozenset[Held]:
    """Return the leases that another worker has, or that were released."""
    if not leases:
        return leases
    rows = AgentRun.objects.filter(pk__in=[run_id for run_id, _ in leases], status=RunStatus.RUNNING)
    return leases - frozenset(rows.values_list("pk", "lease_epoch"))
