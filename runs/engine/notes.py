"""Events that a worker writes without a message or a result, each exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from django.db import transaction

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import writes
from runs.engine.leases import Lease
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.models import RunError
from timeline import log
from timeline.log import Entry
from timeline.models import Source


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
    """Append events, in the caller's transaction if there is one, and count the abandoned model calls among them."""
    with transaction.atomic():
        writes.count_abandoned(lease.run_id, lease.epoch, entries)
        log.append(lease.run_id, entries, source=Source.WORKER, epoch=lease.epoch)


def _with_event_ids(lease: Lease, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with IDs, so that a repeated append after an unclear commit is recognised.

    The IDs contain "~", which senders' IDs must not contain, so they cannot collide.
    """
    return [replace(entry, event_id=f"~{lease.epoch}.{next(lease.numbers)}") for entry in entries]
