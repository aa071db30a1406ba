"""Writes the search index behind the log: masked copies of what events, messages and tool calls say.

Nothing is written while events are appended. Workers call `catch_up` every second; it goes on after the last indexed
event. The entries of a batch and the new position are one transaction, so that a batch is indexed once or, after a
crash, again. Texts are read and masked before it, so that no lock is held meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, Max
from django.utils import timezone

from runs import chaos
from runs.models import SearchEntry, SearchPosition
from runs.upkeep.search_texts import SKIPPED, entries_of
from timeline.bulk.settled import settled_event
from timeline.models import Event

#: Events that are indexed in one transaction.
BATCH = 200
#: A shorter delay is not reported.
USUAL_LAG_S = 5.0
#: Entries that are deleted in one transaction.
DELETED = 1000
_UPDATED = [field.attname for field in SearchEntry._meta.concrete_fields if field.attname not in ("id", "project_id")]


def catch_up() -> Iterator[bool]:
    """Index what was appended so far, in batches. Yields after each; False, as the last, if another process works."""
    for _ in _delete_old():
        yield True
    position = _position()
    upto = settled_event(position.event_id)
    while upto is not None and position.event_id < upto:
        stored = _index_batch(position, upto)
        yield stored
        if not stored:
            return
        position = _position()


def lag_s() -> int:
    """Return for how many seconds the oldest event that is not in the index has waited. 0 for the usual delay."""
    missing = Event.objects.filter(pk__gt=_position().event_id).exclude(type__in=SKIPPED).order_by("pk")
    stored_at = missing.values_list("created_at", flat=True).first()
    waited = (timezone.now() - stored_at).total_seconds() if stored_at is not None else 0.0
    return int(waited) if waited > USUAL_LAG_S else 0


def entry_count() -> int:
    """Return the number of entries. Counts them all."""
    return SearchEntry.objects.count()


def rebuild(run_id: UUID) -> int:
    """Write the entries of a run anew, and return their number. Entries that are left keep their place."""
    newest = Event.objects.filter(log=run_id).aggregate(newest=Max("seq"))["newest"] or 0
    before = SearchEntry.objects.filter(run=run_id, seq__lte=newest)
    obsolete = dict(before.values_list("key", "pk"))
    seq, count = 0, 0
    while seq < newest:
        with transaction.atomic():
            # Read under the lock, so that no older text replaces what catch_up has written meanwhile.
            position = _locked_position()
            rows = Event.objects.filter(log=run_id, seq__gt=seq, seq__lte=newest).exclude(type__in=SKIPPED)
            events = list(rows.order_by("seq")[:BATCH])
            entries = entries_of(events)
            _store(entries, position.entry_id)
            SearchPosition.objects.filter(pk=position.pk).update(entry_id=F("entry_id") + len(entries))
        for entry in entries:
            obsolete.pop(entry.key, None)
        count += len(entries)
        seq = events[-1].seq if len(events) == BATCH else newest
    keys = list(obsolete.values())
    for begin in range(0, len(keys), DELETED):
        SearchEntry.objects.filter(pk__in=keys[begin : begin + DELETED]).delete()
    return count


def start_over() -> Iterator[int]:
    """Delete all entries, then let the workers index everything again. Yields the number of entries of each batch.

    If it is interrupted, the workers delete the rest.
    """
    with transaction.atomic():
        position = _locked_position()
        if position.event_id >= 0:
            SearchPosition.objects.filter(pk=position.pk).update(event_id=-1 - position.entry_id)
    yield from _delete_old()


def _delete_old() -> Iterator[int]:
    """Delete the entries that `start_over` has left. Yields the number of entries of each batch."""
    position = _position()
    if position.event_id >= 0:
        return
    # Nobody changes one of them meanwhile: nothing is indexed before all are deleted, and then entries get new IDs.
    old = SearchEntry.objects.filter(pk__lt=-position.event_id).order_by("pk").values_list("pk", flat=True)
    while keys := list(old[:DELETED]):
        count = SearchEntry.objects.filter(pk__in=keys).delete()[0]
        chaos.point("index.deleted")
        yield count
    SearchPosition.objects.filter(pk=position.pk, event_id=position.event_id).update(event_id=0)


def _index_batch(position: SearchPosition, upto: int) -> bool:
    """Index the next events. Return False, with nothing changed, if another process was faster."""
    rows = Event.objects.filter(pk__gt=position.event_id, pk__lte=upto).exclude(type__in=SKIPPED)
    events = list(rows.order_by("pk")[:BATCH])
    last = events[-1].pk if len(events) == BATCH else upto
    entries = entries_of(events)
    try:
        with transaction.atomic():
            # The guarded UPDATE decides the race: one process moves the position.
            unmoved = SearchPosition.objects.filter(pk=position.pk, event_id=position.event_id)
            if not unmoved.update(event_id=last, entry_id=F("entry_id") + len(entries)):
                return False
            _store(entries, SearchPosition.objects.values_list("entry_id", flat=True).get() - len(entries))
            chaos.point("index.in_transaction")
    except IntegrityError:
        # Retention has deleted one of the runs since they were read. The next attempt leaves it out.
        return False
    return True


def _store(entries: list[SearchEntry], last_id: int) -> None:
    """Insert the entries after `last_id`. Entries that exist are changed, and keep their IDs."""
    for number, entry in enumerate(entries, last_id + 1):
        entry.pk = number
    SearchEntry.objects.bulk_create(
        entries, update_conflicts=True, unique_fields=["run_id", "key"], update_fields=_UPDATED
    )


def _position() -> SearchPosition:
    return SearchPosition.objects.filter(pk=1).first() or SearchPosition.objects.get_or_create(pk=1)[0]


def _locked_position() -> SearchPosition:
    _position()
    return SearchPosition.objects.select_for_update().get()
