"""Before a tool runs, the worker verifies its lease: with a query, or by a very recent accepted write."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest
from pytest_django import DjangoAssertNumQueries, Settings

from agentops.base.database_clock import clock
from runs.engine.leases import Lease
from runs.engine.safe_commit import append, commit_safely, do_nothing, note
from runs.lifecycle import transitions
from runs.models import AgentRun
from tests.support.factories import make_run
from timeline.events.notice import ContextTrimmed
from timeline.log import Entry
from timeline.models import LeaseLost

EVENT = Entry(ContextTrimmed(turns=1, tokens=1))
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lease() -> Lease:
    run = make_run()
    began = clock()
    claimed = transitions.claim(run.pk, "first")
    assert claimed is not None
    return Lease(run.pk, claimed.epoch, valid_until=began + 20)


def take_over(lease: Lease) -> None:
    AgentRun.objects.filter(pk=lease.run_id).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert transitions.claim(lease.run_id, "second") is not None


def write(lease: Lease) -> None:
    """Write like the start of a call."""
    commit_safely(
        partial(append, lease, [EVENT]),
        is_committed=lambda: False,
        read_result=do_nothing,
        lease=lease,
        proves_lease=True,
    )


def test_an_accepted_write_proves_the_lease(lease: Lease, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    write(lease)

    with django_assert_num_queries(0):
        lease.prove()


def test_other_writes_prove_nothing(lease: Lease) -> None:
    """Some of these writes do nothing when nothing is pending, and then do not check the fencing token."""
    note(lease, EVENT)
    take_over(lease)

    with pytest.raises(LeaseLost):
        lease.prove()


def test_an_old_write_proves_nothing(lease: Lease, settings: Settings) -> None:
    write(lease)
    lease.proven_at -= settings.AGENTOPS_LEASE_S / 80
    take_over(lease)

    with pytest.raises(LeaseLost):
        lease.prove()


def test_a_refused_write_proves_nothing(lease: Lease) -> None:
    take_over(lease)

    with pytest.raises(LeaseLost):
        write(lease)
    with pytest.raises(LeaseLost):
        lease.prove()


def test_an_expired_lease_is_lost_despite_a_recent_write(lease: Lease) -> None:
    write(lease)
    lease.valid_until = clock() - 1

    with pytest.raises(LeaseLost):
        lease.prove()
