"""Events that a worker writes by themselves, without a row of the conversation, each committed exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from django.db import transaction

from runs.conversation import writes
from runs.engine.leases import Lease
from runs.engine.safe_commit import durably, nothing
from runs.models import RunError
from timeline import log
from timeline.log import Entry
from timeline.models import Source
from timeline.redaction.redact import DEFAULT as REDACTOR


def note(lease: Lease, *entries: Entry) -> None:
    """Append events to the log of the run that is held, in a transaction of their own."""
    durably(partial(append, lease, _named(lease, entries)), landed=lambda: False, found=nothing, lease=lease)


def note_failure(lease: Lease, error: RunError, *entries: Entry) -> None:
    """Commit a failed attempt with the events that speak of it, at least one."""
    named = _named(lease, entries)
    error.message, _ = REDACTOR.clean_text(error.message)
    error.details, _ = REDACTOR.clean_text(error.details)

    def write() -> None:
        with transaction.atomic():
            append(lease, named)
            error.save(force_insert=True)

    durably(write, landed=lambda: log.has_event(lease.run_id, named[0].event_id), found=nothing, lease=lease)


def append(lease: Lease, entries: Sequence[Entry]) -> None:
    """Append events in the caller's transaction, or one of their own; abandoned model calls are counted with them."""
    with transaction.atomic():
        writes.count_abandoned(lease.run_id, lease.epoch, entries)
        log.append(lease.run_id, entries, source=Source.WORKER, epoch=lease.epoch)


def _named(lease: Lease, entries: Sequence[Entry]) -> list[Entry]:
    """The entries under ids made now: appended again after a commit of unknown outcome, they are known.

    "~" is no character of a sender's id, and a lease has its epoch for itself.
    """
    return [replace(entry, event_id=f"~{lease.epoch}.{next(lease.numbers)}") for entry in entries]
