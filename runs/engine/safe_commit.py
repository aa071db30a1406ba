"""Commits whose outcome is never guessed: after a lost connection the rows are looked up, then written again.

IDs are generated before the transaction, so rows that were committed can be recognised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connection

from runs.engine.leases import Lease
from runs.engine.storage_errors import STORAGE, pass_others_on

log = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_WAIT_S = 0.1
MAX_WAIT_S = 2.0


def durably(write: Callable[[], T], *, landed: Callable[[], bool], found: Callable[[], T], lease: Lease) -> T:
    """Call `write` until it has committed once, as long as the lease is valid.

    `landed` says, on a new connection, whether a write without an answer was committed, and `found` returns its
    result then. Raises `LeaseLost`.
    """
    wait = FIRST_WAIT_S
    lease.check()
    try:
        return write()
    except STORAGE as error:
        pass_others_on(error)
        log.warning("storage failed in a step: %s", type(error).__name__, extra={"run_id": str(lease.run_id)})
    while True:
        connection.close()
        time.sleep(wait)
        wait = min(wait * 2, MAX_WAIT_S)
        lease.check()
        try:
            return found() if landed() else write()
        except STORAGE as error:
            pass_others_on(error)


def nothing() -> None:
    """Return None: the result of a write that returns nothing."""
