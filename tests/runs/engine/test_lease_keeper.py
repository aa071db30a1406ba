"""The thread that renews the leases of a process; without it, the process would lose all its runs."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db.backends.signals import connection_created
from pytest_django import Settings

from agentops.base.database_clock import clock
from runs.engine.leases import LeaseKeeper
from runs.lifecycle import transitions
from tests.support.factories import make_run
from tests.support.timing import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def refused() -> Iterator[list[int]]:
    """Make the thread's first connection fail for lack of file descriptors."""
    errors: list[int] = []

    def refuse(**_: Any) -> None:
        if threading.current_thread().name == "lease-keeper" and not errors:
            errors.append(errno.EMFILE)
            raise OSError(errno.EMFILE, "Too many open files")

    connection_created.connect(refuse)
    yield errors
    connection_created.disconnect(refuse)


def test_the_thread_continues_after_any_error(settings: Settings, refused: list[int]) -> None:
    settings.AGENTOPS_RENEW_S = 0.05
    run = make_run()
    claimed = transitions.claim(run.pk, "owner")
    assert claimed is not None
    keeper = LeaseKeeper()
    try:
        with keeper.keep(run.pk, claimed.epoch, clock()) as lease:
            until = lease.valid_until
            eventually(lambda: lease.valid_until > until, why="the lease is not renewed")
    finally:
        keeper.close(time.monotonic() + 20)

    assert refused
