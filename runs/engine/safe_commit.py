"""Commits with a known outcome: after a lost connection the rows are looked up, and written again if they are missing.

IDs are generated before the transaction, so committed rows can be recognised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connection

from agentops.base.database_clock import clock
from runs.database_errors import STORAGE_ERRORS, raise_unless_storage_error
from runs.engine.leases import Lease

log = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_WAIT_S = 0.1
MAX_WAIT_S = 2.0


def commit_safely(
    write: Callable[[], T],
    *,
    is_committed: Callable[[], bool],
    read_result: Callable[[], T],
    lease: Lease,
    proves_lease: bool = False,
) -> T:
    """Call `write` until it has committed once, as long as the lease is valid.

    `is_committed` looks up, on a new connection, whether a write without an answer was committed; `read_result` returns
    its result in that case. `proves_lease`: the write fails in any case if the run was taken over, so that a tool may
    run right after it. Raises `LeaseLost`.
    """
    wait = FIRST_WAIT_S
    lease.check()
    try:
        return _write(write, lease, proves_lease=proves_lease)
    except STORAGE_ERRORS as error:
        raise_unless_storage_error(error)
        log.warning("storage failed in a step: %s", type(error).__name__, extra={"run_id": str(lease.run_id)})
    while True:
        connection.close()
        time.sleep(wait)
        wait = min(wait * 2, MAX_WAIT_S)
        lease.check()
        try:
            return read_result() if is_committed() else _write(write, lease, proves_lease=proves_lease)
        except STORAGE_ERRORS as error:
            raise_unless_storage_error(error)


def _write(write: Callable[[], T], lease: Lease, *, proves_lease: bool) -> T:
    began = clock()
    result = write()
    if proves_lease:
        lease.proven_at = began
    return result


def do_nothing() -> None:
    """Return None: the result of a write that returns nothing."""
