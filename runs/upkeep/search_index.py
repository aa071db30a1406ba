"""Maintains the search index from the log: masked copies of the texts of events, messages and tool calls.

The index is not updated when events are appended. Workers call `catch_up`, which continues after the last indexed
event (the position). One transaction stores the last entries of a batch and the new position, so that after a crash the
batch is indexed again. Texts are read and masked before that transaction, so that it holds no lock for long.

After an upgrade to a version that indexes more, older events are indexed again, with a second position. Until then new
events are indexed first, and the existing entries can be searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, Max, Subquery

from agentops.base import database_clock
from runs import chaos
from runs.models import SearchEntry, SearchPosition
from runs.queries.searching.index_entries import MAX_PARTS, part_key, part_number, text_key
from runs.upkeep.search_texts import SKIPPED, entries_of
from timeline.models import Event
from timeline.reading import settled_event

#: Number of events that are indexed in one transaction.
BATCH = 200
#: Number of events of a run that are indexed again in one transaction, which locks the index.
REBUILD_BATCH = 25
#: Maximum characters stored in one transaction, unless a single text has more.
MAX_STORED = 500_000
#: Seconds of delay that are not reported.
USUAL_LAG_S = 5.0
#: Number of entries that are deleted in one transaction.
DELETE_BATCH = 1000
_UPDATED = [field.attname for field in SearchEntry._meta.concrete_fields if field.attname not in ("id", "project_id")]


def catch_up() -> Iterator[bool]:
    """Index the events appended so far, in batches. Yields True after each batch.

    If another process has moved the position, yields False and ends.
    """
    while True:
        position, older, newest = _positions()
        if position.event_id < 0:
            for _ in _delete_old():
                yield True
            continue
        upto = settled_event(position.event_id, newest)
        while upto is not None and position.event_id < upto:
            stored = _index_batch(position, upto)
            yield stored
            if not stored:
                return
            position = _position()
        # One batch of older events at a time, so that new events do not wait.
        if older is None:
            return
        if older.event_id < position.event_id:
            stored = _index_batch(older, position.event_id)
            yield stored
            if not stored:
                return
        else:
            older.delete()


def is_behind() -> bool:
    """Whether some events are not indexed yet, also if `catch_up` has to wait for an open transaction. One query."""
    position, older, newest = _positions()
    return position.event_id < 0 or older is not None or newest is None or position.event_id < newest


def is_extending() -> bool:
    """Whether older events are being indexed again, because this version indexes more of them."""
    return SearchPosition.objects.filter(pk=SearchPosition.OLDER).exists()


def lag_s() -> int:
    """Return how many seconds the oldest unindexed event has waited; 0 up to the usual delay."""
    missing = Event.objects.filter(pk__gt=_position().event_id).exclude(type__in=SKIPPED).order_by("pk")
    stored_at = missing.values_list("created_at", flat=True).first()
    waited = database_clock.seconds_between(stored_at, database_clock.now()) if stored_at is not None else 0.0
    return int(waited) if waited > USUAL_LAG_S else 0


def entry_count() -> int:
    """Return the number of entries. Counts all rows, which is slow."""
    return SearchEntry.objects.count()


def rebuild(run_id: UUID) -> int:
    """Index all events of a run again, and return the number of its entries. Existing entries keep their IDs."""
    newest = Event.objects.filter(log=run_id).aggregate(newest=Max("seq"))["newest"] or 0
    before = list(SearchEntry.objects.filter(log=run_id, seq__lte=newest).values_list("key", "pk"))
    seq, written = 0, set[str]()
    while seq < newest:
        with transaction.atomic():
            # Texts are read under the lock, so that an older text cannot replace a newer one of `catch_up`.
            _locked_position()
            rows = Event.objects.filter(log=run_id, seq__gt=seq, seq__lte=newest).exclude(type__in=SKIPPED)
            events = list(rows.order_by("seq")[:REBUILD_BATCH])
            entries = entries_of(events)
            _store(entries)
        written.update(entry.key for entry in entries)
        seq = events[-1].seq if len(events) == REBUILD_BATCH else newest
    outdated = [pk for key, pk in before if key not in written]
    for begin in range(0, len(outdated), DELETE_BATCH):
        SearchEntry.objects.filter(pk__in=outdated[begin : begin + DELETE_BATCH]).delete()
    return len(written)


def start_over() -> Iterator[int]:
    """Delete all entries, so that workers index everything again. Yields the number of deleted entries of each batch.

    If it is interrupted, the workers delete the rest. A negative position is the order to delete: -1 - (the last ID).
    """
    with transaction.atomic():
        # Deleted first, because a batch of older events locks both positions in this order.
        SearchPosition.objects.filter(pk=SearchPosition.OLDER).delete()
        position = _locked_position()
        if position.event_id >= 0:
            SearchPosition.objects.filter(pk=position.pk).update(event_id=-1 - position.entry_id)
    yield from _delete_old()


def _delete_old() -> Iterator[int]:
    """Delete the entries that `start_over` has ordered to delete. Yields the number of entries of each batch."""
    position = _position()
    if position.event_id >= 0:
        return
    # No entry is added to these: indexing starts after all are deleted, and new entries get higher IDs.
    old = SearchEntry.objects.filter(pk__lt=-position.event_id).order_by("pk").values_list("pk", flat=True)
    while keys := list(old[:DELETE_BATCH]):
        count = SearchEntry.objects.filter(pk__in=keys).delete()[0]
        chaos.point("index.deleted")
        yield count
    SearchPosition.objects.filter(pk=position.pk, event_id=position.event_id).update(event_id=0)


def _index_batch(position: SearchPosition, upto: int) -> bool:
    """Index the next batch of events, up to the event `upto`. Returns False if another process was faster."""
    rows = Event.objects.filter(pk__gt=position.event_id, pk__lte=upto).exclude(type__in=SKIPPED)
    events = list(rows.order_by("pk")[:BATCH])
    last = events[-1].pk if len(events) == BATCH else upto
    entries = entries_of(events)
    groups = list(_groups(entries)) or [entries]
    try:
        for number, group in enumerate(groups, 1):
            with transaction.atomic():
                # The guarded UPDATE lets only one process move the position.
                unmoved = SearchPosition.objects.filter(pk=position.pk, event_id=position.event_id)
                if not unmoved.update(event_id=last if number == len(groups) else position.event_id):
                    return False
                _store(group)
                chaos.point("index.in_transaction")
    except IntegrityError:
        # Retention has deleted a run since its events were read. The next attempt omits the run.
        return False
    return True


def _groups(entries: list[SearchEntry]) -> Iterator[list[SearchEntry]]:
    """Yield the entries in groups of about `MAX_STORED` characters, to keep transactions short. No text is divided."""
    group: list[SearchEntry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.text)
        # The entries of a text end with its first part.
        if size >= MAX_STORED and part_number(entry.key) == 0:
            yield group
            group, size = [], 0
    if group:
        yield group


def _store(entries: list[SearchEntry]) -> None:
    """Insert the entries with new IDs, in the caller's transaction. Existing entries are updated and keep their IDs."""
    _delete_other_parts(entries)
    count = len(entries)
    SearchPosition.objects.filter(pk=SearchPosition.NEWEST).update(entry_id=F("entry_id") + count)
    first = _position().entry_id - count + 1
    for number, entry in enumerate(entries, first):
        entry.pk = number
    SearchEntry.objects.bulk_create(
        entries, update_conflicts=True, unique_fields=["log_id", "key"], update_fields=_UPDATED
    )


def _delete_other_parts(entries: list[SearchEntry]) -> None:
    """Delete the stored entries of texts whose number of parts has changed, so that the parts get adjacent IDs."""
    counts: dict[tuple[UUID, str], int] = {}
    for entry in entries:
        text = (entry.log_id, text_key(entry.key))
        counts[text] = max(counts.get(text, 0), part_number(entry.key) + 1)
    # Only texts that may have another number of parts: outputs of calls change, and an earlier version may have indexed
    # less of a long text.
    calls = {(entry.log_id, entry.key) for entry in entries if entry.kind == SearchEntry.Kind.TOOL_CALL}
    counts = {text: count for text, count in counts.items() if count > 1 or text in calls}
    if not counts:
        return
    # The keys of the last part, and of a part after it.
    ends = {part_key(key, number) for (_, key), count in counts.items() for number in (count - 1, count) if number}
    stored = SearchEntry.objects.filter(log__in={log_id for log_id, _ in counts}, key__in=ends)
    stored_keys = set(stored.values_list("log_id", "key"))
    for (log_id, key), count in counts.items():
        has_last = count == 1 or (log_id, part_key(key, count - 1)) in stored_keys
        if not has_last or (log_id, part_key(key, count)) in stored_keys:
            keys = [part_key(key, number) for number in range(MAX_PARTS)]
            SearchEntry.objects.filter(log=log_id, key__in=keys).delete()


def _position() -> SearchPosition:
    """Return the position of new events. Creates it if it does not exist."""
    newest = SearchPosition.objects.filter(pk=SearchPosition.NEWEST).first()
    return newest or SearchPosition.objects.get_or_create(pk=SearchPosition.NEWEST)[0]


def _positions() -> tuple[SearchPosition, SearchPosition | None, int | None]:
    """Return the position of new events, the position of older events if there is one, and the ID of the newest event.

    The ID is None if the first position did not exist. One query, because each worker calls this every second.
    """
    newest = Event.objects.order_by("-pk").values("pk")[:1]
    positions = {position.pk: position for position in SearchPosition.objects.annotate(newest=Subquery(newest))}
    position = positions.get(SearchPosition.NEWEST)
    if position is None:
        return _position(), None, None
    return position, positions.get(SearchPosition.OLDER), position.newest or 0


def _locked_position() -> SearchPosition:
    _position()
    return SearchPosition.objects.select_for_update().get(pk=SearchPosition.NEWEST)
