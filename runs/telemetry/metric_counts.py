"""Count metrics from the stored events, so that the counts cover all processes and survive restarts.

Appending events writes no counts. Workers call `catch_up` once a client has read the metrics. The counts of a batch and
the new position are stored in one transaction, so each event is counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q

from runs.models import AgentRun, FlowRun, MetricCount, MetricPosition, TurnUsage
from timeline.events import TERMINAL_TYPES, EventType
from timeline.models import Event
from timeline.reading import newest_event, settled_event

#: Number of events that are counted in one transaction.
BATCH = 500
#: The upper bounds of the duration buckets, in seconds. The last one is infinite.
BUCKETS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, float("inf"))
#: Maximum number of series of all metrics, because each is a row that is never deleted. Events of further series are
#: counted as `other`.
MAX_SERIES = 5000
_COUNTED = (
    *(EventType.RUN_CREATED, *sorted(TERMINAL_TYPES), EventType.RUN_RECOVERED, EventType.LLM_TURN_END),
    *(EventType.TOOL_END, EventType.RETRY_SCHEDULED, EventType.APPROVAL_REQUESTED, EventType.SAFETY_BLOCK),
)
#: Of the messages, only those with unknown blocks are read.
COUNTED_ROWS = Q(type__in=_COUNTED) | Q(type=EventType.MESSAGE_ADDED, payload__has_key="unknown_blocks")
_TOKENS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_tokens": "cache_read",
    "cache_write_tokens": "cache_write",
    "cache_write_1h_tokens": "cache_write_1h",
    "reasoning_tokens": "reasoning",
}
#: The name of a metric and its labels.
Series = tuple[str, str]


def begin() -> None:
    """Start counting, unless already started. Earlier events are not counted."""
    MetricPosition.objects.get_or_create(pk=1, defaults={"event_id": newest_event()})


def catch_up(is_stopping: Callable[[], bool] = lambda: False) -> int:
    """Count the events appended so far, and return their number. Returns 0 if no client has read the metrics yet."""
    position = MetricPosition.objects.values_list("event_id", flat=True).first()
    if position is None:
        return 0
    count = 0
    upto = settled_event(position)
    while upto is not None and position < upto and not is_stopping():
        rows = Event.objects.filter(COUNTED_ROWS, pk__gt=position, pk__lte=upto).order_by("pk")
        events = list(rows[:BATCH])
        last = events[-1].pk if len(events) == BATCH else upto
        if not _store(position, last, counts_of(events)):
            break
        count += len(events)
        position = last
    return count


def counts_of(events: Sequence[Event]) -> Counter[Series]:
    """Return the increments from these events, by series. At most three queries."""
    counts: Counter[Series] = Counter()
    log_ids = {event.log_id for event in events}
    projects = dict(AgentRun.objects.filter(pk__in=log_ids).values_list("pk", "project__slug"))
    other_logs = log_ids - set(projects)
    flow_runs = FlowRun.objects.filter(pk__in=other_logs)
    flow_projects = dict(flow_runs.values_list("pk", "project__slug")) if other_logs else {}
    usage = _usage_of(events)
    for event in events:
        payload, project = event.payload, projects.get(event.log_id) or flow_projects.get(event.log_id, "")
        metric = "flow_runs" if event.log_id in flow_projects else "runs"
        match event.type:
            case EventType.RUN_CREATED:
                counts[f"{metric}_created", labels(project=project)] += 1
            case EventType.RUN_RECOVERED:
                counts["lease_losses", labels(cause=payload.get("cause"))] += 1
            case EventType.RETRY_SCHEDULED:
                counts["retries", labels(what=payload.get("what"), error=payload.get("error_type"))] += 1
            case EventType.APPROVAL_REQUESTED:
                counts["approvals_requested", labels(project=project)] += 1
            case EventType.SAFETY_BLOCK:
                counts["safety_blocks", labels(project=project)] += 1
            case EventType.MESSAGE_ADDED:
                counts["unknown_blocks", labels(project=project)] += payload["unknown_blocks"]
            case EventType.TOOL_END:
                status = "error" if payload.get("error") else payload.get("status") or "completed"
                counts.update(_duration("tool_seconds", payload, tool=payload.get("tool_name"), status=status))
            case EventType.LLM_TURN_END:
                counts.update(_turn(payload, project, usage.get((event.log_id, event.step))))
            case _:
                counts[f"{metric}_ended", labels(project=project, status=event.type.removeprefix("run."))] += 1
    return counts


def labels(**values: Any) -> str:
    """Return labels in the form of Prometheus's text format."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _turn(payload: Mapping[str, Any], project: str, usage: TurnUsage | None) -> Counter[Series]:
    """Return the increments from a model call: its duration, tokens and cost."""
    model = usage.model if usage is not None else payload.get("model")
    counts = _duration("turn_seconds", payload, model=model)
    if usage is not None and not payload.get("repeated"):
        for column, token in _TOKENS.items():
            if number := getattr(usage, column):
                counts["tokens", labels(project=project, model=model, token=token)] += number
        if usage.cost_usd is None:
            counts["unpriced_calls", labels(project=project, model=model)] += 1
        elif usage.cost_usd:
            counts["cost_usd", labels(project=project, model=model)] += float(usage.cost_usd)  # type: ignore[assignment]
    return counts


def _duration(name: str, payload: Mapping[str, Any], **values: Any) -> Counter[Series]:
    """Return the increments of a histogram for a duration: a bucket, the sum and the count."""
    milliseconds = payload.get("duration_ms")
    seconds = float(milliseconds) / 1000 if isinstance(milliseconds, int | float | Decimal) else 0.0
    bucket = next(bound for bound in BUCKETS_S if seconds <= bound)
    own = labels(**values)
    counts: Counter[Series] = Counter({(f"{name}_bucket", f'{own},le="{bucket:g}"'): 1, (f"{name}_count", own): 1})
    counts[f"{name}_sum", own] = seconds  # type: ignore[assignment]
    return counts


def _usage_of(events: Iterable[Event]) -> dict[tuple[UUID, int | None], TurnUsage]:
    """Return the usage of the answered model calls, by run and step."""
    turns = [event for event in events if event.type == EventType.LLM_TURN_END]
    if not turns:
        return {}
    rows = TurnUsage.objects.filter(
        run__in={event.log_id for event in turns},
        step_number__in={event.step for event in turns if event.step is not None},
        outcome=TurnUsage.Outcome.ANSWERED,
    )
    return {(row.run_id, row.step_number): row for row in rows}


def _store(position: int, last: int, counts: Counter[Series]) -> bool:
    """Add counts and move the position. Returns False, with nothing changed, if another process has moved it."""
    with transaction.atomic():
        # The guarded UPDATE decides the race: one process moves the position.
        if not MetricPosition.objects.filter(pk=1, event_id=position).update(event_id=last):
            return False
        for (name, own), value in sorted(_bounded(counts).items()):
            _add(name, own, value)
    return True


def _bounded(counts: Counter[Series]) -> Counter[Series]:
    """Return the counts. If there may be too many series, counts of new series are added to `other`, by metric."""
    if MetricCount.objects.count() + len(counts) < MAX_SERIES:
        return counts
    known = set(MetricCount.objects.values_list("name", "labels"))
    bounded: Counter[Series] = Counter()
    for (name, own), value in counts.items():
        bounded[(name, own) if (name, own) in known else ("other", labels(metric=name))] += value
    return bounded


def _add(name: str, own: str, value: float) -> None:
    table = MetricCount._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (name, labels, value) VALUES (%s, %s, %s) ON CONFLICT (name, labels)"  # noqa: S608
            f" DO UPDATE SET value = {table}.value + excluded.value",
            [name, own, value],
        )


def _escaped(value: Any) -> str:
    """Return the value of a label: at most 80 characters, without control characters, with escaped quotes."""
    text = "" if value is None else str(value)[:80]
    return "".join(letter for letter in text if letter.isprintable()).replace("\\", "\\\\").replace('"', '\\"')
