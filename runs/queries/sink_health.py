"""The health of sinks: their waiting events, how long these have waited, and refused deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol, cast

from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from agentops.base import database_clock
from runs.models import Delivery, Sink
from timeline.models import Event

#: Seconds of delay that are normal: workers check for events every second.
USUAL_LAG_S = 5.0
#: The number of events of the site, after the sink's position, among which unread events are counted.
UNREAD_SPAN = 1000


class SinkWithHealth(Protocol):
    """The columns that `with_health` and `with_unread` add to a sink."""

    behind_since: datetime | None
    waiting_since: datetime | None
    waiting_deliveries: int
    dead_deliveries: int
    unread_events: int


def with_health(sinks: QuerySet[Sink]) -> QuerySet[Sink]:
    """Add the columns of `SinkWithHealth` to each sink, in the same query, by indexes alone."""
    unread = Event.objects.filter(pk__gt=OuterRef("cursor__event_id")).order_by("pk")
    own = Delivery.objects.filter(sink=OuterRef("pk"))
    waiting = own.filter(due_at__isnull=False)
    return sinks.select_related("cursor", "project").annotate(
        behind_since=Subquery(unread.values("created_at")[:1]),
        waiting_since=Subquery(waiting.order_by("created_at").values("created_at")[:1]),
        waiting_deliveries=_count(waiting),
        dead_deliveries=_count(own.filter(state=Delivery.State.DEAD)),
    )


def with_unread(sinks: QuerySet[Sink]) -> QuerySet[Sink]:
    """Add `unread_events`: the events of the sink's project among the next `UNREAD_SPAN` of the site.

    Events of other projects are not counted, because their number is confidential.
    """
    position = OuterRef("cursor__event_id")
    unread = Event.objects.filter(pk__gt=position, pk__lte=position + UNREAD_SPAN, log__project=OuterRef("project_id"))
    counted = unread.order_by().annotate(all=Value(1)).values("all").annotate(number=Count("pk")).values("number")
    return sinks.annotate(unread_events=Coalesce(Subquery(counted, output_field=IntegerField()), 0))


def has_backlog(sink: Sink) -> bool:
    """Return whether unread events or deliveries wait for a sink with the columns of `SinkWithHealth`."""
    health = cast("SinkWithHealth", sink)
    return bool(health.unread_events or health.waiting_deliveries)


def lag_s(sink: Sink, now: datetime | None = None) -> int:
    """Return how many seconds the oldest undelivered event of a sink has waited; 0 for at most `USUAL_LAG_S`."""
    health = cast("SinkWithHealth", sink)
    times = [at for at in (health.behind_since, health.waiting_since) if at is not None]
    waited = database_clock.seconds_between(min(times), now or database_clock.now()) if times else 0.0
    return int(waited) if waited > USUAL_LAG_S else 0


def deliveries_of(sink: Sink, states: tuple[str, ...] = ()) -> QuerySet[Delivery]:
    """Return the deliveries of a sink, newest first. `states`: only those in one of these states."""
    rows = Delivery.objects.filter(sink=sink).order_by("-pk")
    return rows.filter(state__in=states) if states else rows


def _count(rows: QuerySet[Delivery]) -> Any:
    """Return the expression for the number of these deliveries of a sink."""
    counted = rows.order_by().values("sink").annotate(number=Count("pk")).values("number")
    return Coalesce(Subquery(counted, output_field=IntegerField()), 0)
