"""Read the events that a sink has not received yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.db.models import F, Q, QuerySet

from runs.models import Delivery, Sink
from runs.telemetry.sink_kind import SinkKind
from timeline.events import CHUNK_TYPES
from timeline.models import Event

#: Number of event IDs that one query covers, so that a project with few events among many causes no long scan.
SPAN = 5000
#: The suffix of a name for a family of types.
FAMILY = ".*"


@dataclass(frozen=True)
class EventBatch:
    """The next events of a sink, and the position after them."""

    events: Sequence[Event]
    position: int


def next_batch(sink: Sink, kind: SinkKind, after: int, upto: int, *, size: int) -> EventBatch:
    """Return at most `size` next events for the sink, and the position up to which it has all of them."""
    bound = min(upto, after + SPAN)
    rows = wanted(sink, kind).filter(pk__gt=after, pk__lte=bound)
    events = list(rows.order_by("pk")[:size])
    return EventBatch(events, events[-1].pk if len(events) == size else bound)


def events_of(delivery: Delivery, kind: SinkKind) -> list[Event]:
    """Return the events of a delivery that still exist."""
    rows = wanted(delivery.sink, kind).filter(pk__gte=delivery.first_event, pk__lte=delivery.last_event)
    return list(rows.order_by("pk"))


def wanted(sink: Sink, kind: SinkKind) -> QuerySet[Event]:
    """Return the events that a sink selects, with their logs."""
    rows = Event.objects.select_related("log")
    rows = exported(rows) if sink.project_id is None else rows.filter(log__project=sink.project_id)
    types = kind.types_of(sink.config, sink.event_types)
    return rows.filter(selected(types)) if types else rows.exclude(type__in=CHUNK_TYPES)


def exported(rows: QuerySet[Event]) -> QuerySet[Event]:
    """Return the events of projects whose telemetry is on, without runs that began before it was switched on again.

    Runs are excluded as a whole, because the trace of a run that ends later would contain the earlier messages.
    """
    since = Q(log__project__telemetry_since=None) | Q(log__created_at__gte=F("log__project__telemetry_since"))
    return rows.filter(since, log__project__exports_telemetry=True)


def selected(types: Collection[str]) -> Q:
    """Return the condition for events of these types; `run.*` selects all types that begin with `run.`."""
    condition = Q(type__in=[each for each in types if not each.endswith(FAMILY)])
    for each in types:
        if each.endswith(FAMILY):
            condition |= Q(type__startswith=each.removesuffix("*"))
    return condition
