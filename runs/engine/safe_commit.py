"""Commits with a known outcome: after a lost connection the rows are looked up, and written again if they are missing.

IDs are generated before the transaction, so committed rows can be recognised. Notes are events that a worker writes
in a separate transaction, each exactly once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from django.db import connection, transaction

from agentops.base.database_clock import clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import writes
from runs.database_errors import STORAGE_ERRORS, raise_unless_storage_error
from runs.engine.leases import Lease
from runs.models import RunError
from timeline import log
from timeline.log import Entry
from timeline.models import Source

logger = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds before the second attempt; doubled after each attempt up to the maximum.
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

    If the database did not answer, `is_committed` looks up, on a new connection, whether the write was committed, and
    `read_result` returns its result. `proves_lease`: the write fails whenever the run was taken over, so a tool may run
    right after it. Raises `LeaseLost`.
    """
    wait = FIRST_WAIT_S
    lease.check()
    try:
        return _write(write, lease, proves_lease=proves_lease)
    except STORAGE_ERRORS as error:
        raise_unless_storage_error(error)
        logger.warning("storage failed in a step: %s", type(error).__name__, extra={"run_id": str(lease.run_id)})
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
    """Call `write`, and set `lease.proven_at` if the write proves the lease."""
    began = clock()
    result = write()
    if proves_lease:
        lease.proven_at = began
    return result


def do_nothing() -> None:
    """Return None: the `read_result` of a write that returns nothing."""


def note(lease: Lease, *entries: Entry) -> None:
    """Append events to the log of the held run, in a separate transaction."""
    commit_safely(
        partial(append, lease, _with_event_ids(lease, entries)),
        is_committed=lambda: False,
        read_result=do_nothing,
        lease=lease,
    )


def note_failure(lease: Lease, error: RunError, *entries: Entry) -> None:
    """Save a failed attempt together with its events. At least one event is required."""
    entries_with_ids = _with_event_ids(lease, entries)
    error.message, _ = REDACTOR.clean_text(error.message)
    error.details, _ = REDACTOR.clean_text(error.details)

    def write() -> None:
        with transaction.atomic():
            append(lease, entries_with_ids)
            error.save(force_insert=True)

    commit_safely(
        write,
        is_committed=lambda: log.has_event(lease.run_id, entries_with_ids[0].event_id),
        read_result=do_nothing,
        lease=lease,
    )


def append(lease: Lease, entries: Sequence[Entry]) -> None:
    """Append events, and add the usage of abandoned model calls among them to the run. All in one transaction."""
    with transaction.atomic():
        writes.count_abandoned(lease.run_id, lease.epoch, entries)
        log.append(lease.run_id, entries, source=Source.WORKER, epoch=lease.epoch)


def _with_event_ids(lease: Lease, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with event IDs, so that the log ignores a repeated append after an unclear commit.

    The IDs begin with "~", which the IDs of senders must not contain, so the two cannot collide.
    """
    return [replace(entry, event_id=f"~{lease.epoch}.{next(lease.numbers)}") for entry in entries]
