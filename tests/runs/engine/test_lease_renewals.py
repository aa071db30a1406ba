"""Leases are renewed together, and a locked row does not block the other renewals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from agentops.base.database_clock import clock
from runs.engine import leases
from runs.engine.leases import Lease, LeaseKeeper
from runs.lifecycle import transitions
from runs.models import AgentRun
from tests.support.factories import make_run
from tests.support.timing import eventually

pytestmark = pytest.mark.django_db(transaction=True)
LEASE_S, RENEW_S = 2.0, 0.2
Keep = Callable[[AgentRun], Lease]
Locked = Callable[..., psycopg.Connection]


def claimed() -> AgentRun:
    claim = transitions.claim(make_run().pk, "owner")
    assert claim is not None
    return claim.run


def held(*runs: AgentRun) -> list[leases.Held]:
    return [(run.pk, run.lease_epoch) for run in runs]


@pytest.fixture
def keep(settings: Settings) -> Iterator[Keep]:
    """Keep the lease of a run."""
    settings.AGENTOPS_LEASE_S, settings.AGENTOPS_RENEW_S = LEASE_S, RENEW_S
    keeper = LeaseKeeper()
    with ExitStack() as stack:
        yield lambda run: stack.enter_context(keeper.keep(run.pk, run.lease_epoch, clock()))
    keeper.close(time.monotonic() + 20)


@pytest.fixture
def locked() -> Iterator[Locked]:
    """Lock the rows of runs on a separate connection, like a process suspended in a transaction."""
    with ExitStack() as stack:

        def lock(*runs: AgentRun) -> psycopg.Connection:
            name = connection.settings_dict["NAME"]
            other = stack.enter_context(psycopg.connect(os.environ["DATABASE_URL"], dbname=name))
            ids: list[UUID] = [run.pk for run in runs]
            other.execute("SELECT id FROM agent_runs WHERE id = ANY(%s) FOR UPDATE", [ids])
            stack.callback(other.rollback)
            return other

        yield lock


def is_renewed(lease: Lease) -> bool:
    until = lease.valid_until
    eventually(lambda: lease.valid_until > until, why="the lease is not renewed")
    return True


@pytest.mark.breaks_invariants("rows as after a claim and a pause, without their events")
def test_leases_are_renewed_together_and_a_taken_or_released_run_is_lost() -> None:
    runs = [claimed() for _ in range(4)]
    ends = dict(AgentRun.objects.values_list("pk", "lease_expires_at"))
    mine, taken, released, later = runs
    AgentRun.objects.filter(pk=taken.pk).update(lease_epoch=2)
    AgentRun.objects.filter(pk=released.pk).update(status="paused", lease_owner=None, lease_expires_at=None)
    time.sleep(0.01)

    with CaptureQueriesContext(connection) as queries:
        result = leases.renew_unlocked(held(*runs))

    assert result.renewed == {*held(mine, later)}
    assert result.lost == {*held(taken, released)}
    # One statement for all, and one query for the runs that were not renewed.
    assert len(queries) == 2
    now = dict(AgentRun.objects.values_list("pk", "lease_expires_at"))
    assert {pk for pk, end in now.items() if end != ends[pk] and end is not None} == {mine.pk, later.pk}
    assert now[mine.pk] > ends[mine.pk]


def test_one_statement_renews_all() -> None:
    runs = [claimed() for _ in range(3)]

    with CaptureQueriesContext(connection) as queries:
        result = leases.renew_unlocked(held(*runs))

    assert (result.renewed, result.lost) == ({*held(*runs)}, set())
    assert len(queries) == 1


@pytest.mark.postgres
def test_a_locked_row_is_neither_renewed_nor_lost(locked: Locked) -> None:
    free, busy = claimed(), claimed()
    before = AgentRun.objects.get(pk=busy.pk).lease_expires_at
    other = locked(busy)

    began = time.monotonic()
    result = leases.renew_unlocked(held(free, busy))
    with pytest.raises(OperationalError):
        leases.renew_locked(busy.pk, busy.lease_epoch, wait_s=0.1)

    assert time.monotonic() - began < 8
    assert (result.renewed, result.lost) == ({*held(free)}, set())
    assert AgentRun.objects.get(pk=busy.pk).lease_expires_at == before
    other.rollback()
    assert leases.renew_locked(busy.pk, busy.lease_epoch, wait_s=0.1)
    assert not leases.renew_locked(busy.pk, busy.lease_epoch - 1, wait_s=0.1)


@pytest.mark.postgres
def test_two_locked_rows_do_not_prevent_the_other_renewals(keep: Keep, locked: Locked) -> None:
    """Both rows are locked for longer than a lease: only they wait, and the others are renewed in time."""
    runs = [claimed() for _ in range(4)]
    first, second, *others = [keep(run) for run in runs]
    other = locked(*runs[:2])
    ends = [first.valid_until, second.valid_until]

    until = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < until:
        for lease in others:
            lease.check()
        time.sleep(0.02)

    assert [first.valid_until, second.valid_until] == ends
    assert not first.lost.is_set()
    assert not second.lost.is_set()
    other.rollback()
    # No other process took them over: the rows still name this process as the holder.
    assert all(is_renewed(lease) for lease in (first, second))


@pytest.mark.postgres
@pytest.mark.breaks_invariants("a row as after a claim, without its events")
def test_a_row_locked_by_a_takeover_is_lost(keep: Keep, locked: Locked) -> None:
    taken, mine = claimed(), claimed()
    lost, kept = keep(taken), keep(mine)
    other = locked(taken)
    other.execute("UPDATE agent_runs SET lease_epoch = lease_epoch + 1 WHERE id = %s", [taken.pk])
    assert is_renewed(kept)
    assert not lost.lost.is_set()

    other.commit()

    eventually(lost.lost.is_set, why="its epoch is another one")
    assert not kept.lost.is_set()
