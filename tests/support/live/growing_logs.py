"""Logs that grow as a worker or a runner appends to them. Used by the stream tests.

May import the product and the suite's builders.
"""

from __future__ import annotations

from django.db import transaction

from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus
from timeline import log
from timeline.events.run import RunStopped
from timeline.log import Entry
from timeline.models import Event, Log, Source
from timeline.tombstones import allow_changes


def grow(run: AgentRun, count: int = 1, *, size: int = 0, text: str | None = None) -> int:
    """Append `count` events in one transaction, each with `text` or with `size` characters. Return the last seq."""
    entries = [
        Entry({"n": number, "text": "x" * size if text is None else text}, type="x.test", clean=True)
        for number in range(count)
    ]
    with transaction.atomic():
        return log.append(run.pk, entries, source=Source.INGEST)[-1].seq


def finish(run: AgentRun) -> int:
    """Stop the run. Return the seq of its terminal event."""
    transitions.move(run, RunStatus.STOPPED, RunStopped(reason="operator"), source=Source.WEB, reason="operator")
    return last_seq(run)


def last_seq(run: AgentRun) -> int:
    return Log.objects.get(pk=run.pk).last_seq


def rewind(run: AgentRun, to: int) -> None:
    """Delete the events after seq `to`, as a restored backup would."""
    with allow_changes("test: a restored backup"):
        Event.objects.filter(log=run.pk, seq__gt=to).delete()
        Log.objects.filter(pk=run.pk).update(last_seq=to)
