"""The metrics in the text format of Prometheus: the stored counts, and gauges from short queries."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Count, QuerySet
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agentops.base import database_clock
from agentops.base.backing_services import PRIORITIES
from runs.models import AgentRun, FlowRun, MetricCount, Sink, WorkerProcess
from runs.queries import queue_state, remote_processes, sink_health
from runs.statuses import RunStatus
from runs.telemetry import metric_counts

PREFIX = "agentops_"
#: Seconds for which a response is reused.
FRESH_S = 5.0
_COUNTERS = {
    "runs_created": "Runs that were created, by project.",
    "runs_ended": "Runs that ended, by project and status.",
    "flow_runs_created": "Flow runs that were created, by project.",
    "flow_runs_ended": "Flow runs that ended, by project and status.",
    "lease_losses": "Runs that another worker took over, by cause.",
    "retries": "Retries of model and tool calls, by error.",
    "approvals_requested": "Approvals that were requested, by project.",
    "safety_blocks": "Tool calls that hooks or rules denied, by project.",
    "tokens": "Tokens of model calls, by project, model and kind. Input includes cached tokens.",
    "cost_usd": "Cost of model calls in US dollars, by project and model, as far as it is known.",
    "unpriced_calls": "Model calls whose cost is unknown and not part of `cost_usd`, by project and model.",
    "unknown_blocks": "Blocks of messages in a form that is not known, by project. The messages have their raw text.",
    "other": "What was counted without its labels, because there are too many series.",
}
_HISTOGRAMS = {
    "turn_seconds": "Duration of model calls, by model.",
    "tool_seconds": "Duration of tool calls, by tool and status.",
}
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNENDED = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PAUSED)
Labels = Mapping[str, str]


class SiteCollector(Collector):
    """Collects the metrics of the site. `streams` is the number of open streams of this process."""

    def __init__(self, streams: int) -> None:
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        rows = list(MetricCount.objects.order_by("name", "labels").values_list("name", "labels", "value"))
        for name, help_text in _COUNTERS.items():
            yield _counter(name, help_text, [(own, value) for each, own, value in rows if each == name])
        for name, help_text in _HISTOGRAMS.items():
            yield _histogram(name, help_text, rows)
        yield from _run_gauges()
        yield from _queue_gauges()
        yield from _message_gauges()
        yield _recovery_gauge()
        yield from _sink_gauges()
        yield _gauge("stream_clients", "Open event streams of the web process that has answered.", self._streams)


class _Cache:
    """The last response, so that frequent reads do not load the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Monotonic seconds.
        self._created_at = float("-inf")
        self._text = b""

    def get(self, streams: int) -> bytes:
        with self._lock:
            if time.monotonic() - self._created_at >= FRESH_S:
                metric_counts.begin()
                registry = CollectorRegistry()
                registry.register(SiteCollector(streams))
                self._text, self._created_at = generate_latest(registry), time.monotonic()
            return self._text

    def clear(self) -> None:
        with self._lock:
            self._created_at = float("-inf")


CACHE = _Cache()


def _counter(name: str, help_text: str, rows: Iterable[tuple[str, float]]) -> CounterMetricFamily:
    """Return a counter. `rows`: the stored labels and value of each series."""
    parsed = [(_parsed(own), value) for own, value in rows]
    names = sorted({label for own, _ in parsed for label in own})
    family = CounterMetricFamily(f"{PREFIX}{name}", help_text, labels=names)
    for own, value in parsed:
        family.add_metric([own.get(label, "") for label in names], value)
    return family


def _histogram(name: str, help_text: str, rows: Iterable[tuple[str, str, float]]) -> HistogramMetricFamily:
    """Return a histogram. `rows`: the names, labels and values of all stored series."""
    buckets: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for each, text, value in rows:
        own = dict(_parsed(text))
        bound = own.pop("le", None)
        key = tuple(sorted(own.items()))
        if each == f"{name}_bucket" and bound is not None:
            buckets.setdefault(key, {})[float(bound)] = value
        elif each == f"{name}_sum":
            sums[key] = value
    names = sorted({label for key in buckets for label, _ in key})
    family = HistogramMetricFamily(f"{PREFIX}{name}", help_text, labels=names)
    for key, counts in buckets.items():
        own = dict(key)
        family.add_metric([own.get(label, "") for label in names], list(_cumulative(counts)), sums.get(key, 0.0))
    return family


def _cumulative(counts: Mapping[float, float]) -> Iterator[tuple[str, float]]:
    """Yield each bucket's upper bound, and the number of durations up to it."""
    total = 0.0
    for bound in metric_counts.BUCKETS_S:
        total += counts.get(bound, 0.0)
        yield "+Inf" if bound == float("inf") else f"{bound:g}", total


def _run_gauges() -> Iterator[Metric]:
    yield _unended(AgentRun.objects.all(), "runs", "Runs that have not ended, by status.")
    yield _unended(FlowRun.objects.all(), "flow_runs", "Flow runs that have not ended, by status.")
    waited = queue_state.oldest_queued()
    yield _gauge("queue_age_seconds", "How long the oldest queued run has waited for a worker.", _seconds_since(waited))
    remote = remote_processes.oldest_queued()
    text = "How long the oldest queued remote run has waited for a process."
    yield _gauge("remote_queue_age_seconds", text, _seconds_since(remote))
    lapsed = queue_state.lapsed_count()
    yield _gauge("lapsed_leases", "Running runs whose worker no longer renews its lease.", lapsed)


def _queue_gauges() -> Iterator[Metric]:
    """Yield the queued runs and the worker slots of each queue. A queue with neither has no series."""
    queued = queue_state.queued_counts()
    processes = list(WorkerProcess.objects.of_site())
    slots = _gauge("queue_slots", "Runs that living workers of a queue can execute.", labels=["queue"])
    runs = _gauge("queue_runs", "Queued runs, by queue.", labels=["queue"])
    text = "1 if runs wait in the queue and no living worker serves it."
    unserved = _gauge("queue_unserved", text, labels=["queue"])
    for queue in sorted({*queued, *(name for process in processes for name in process.queues)}):
        serving = [process for process in processes if queue in process.queues]
        slots.add_metric([queue], sum(process.concurrency for process in serving))
        runs.add_metric([queue], queued.get(queue, 0))
        unserved.add_metric([queue], int(queue in queued and not serving))
    yield from (slots, runs, unserved)
    yield _gauge("workers", "Living worker processes.", len(processes))
    remote = WorkerProcess.objects.remote().count()
    yield _gauge("remote_processes", "Living processes elsewhere that execute remote runs.", remote)


def _message_gauges() -> Iterator[Metric]:
    """Yield the messages waiting in Redis, and the age of the last sweep. Without Redis, the metrics have no values."""
    text = "Messages in a queue of Redis, by priority: 0 is the first."
    messages = _gauge("queue_messages", text, labels=["queue", "priority"])
    oldest = _gauge("message_age_seconds", "How long the oldest message of a queued run has been in Redis.")
    sweep = _gauge("sweep_age_seconds", "Seconds since the last sweep, which a clock asks for.")
    broker = queue_state.read_broker() if settings.REDIS_URL else None
    if broker is not None:
        for queue, counts in broker.lengths.items():
            for priority in PRIORITIES:
                messages.add_metric([queue, str(priority)], counts.get(priority, 0))
        oldest.add_metric([], _seconds_since(broker.oldest_sent_at))
    if settings.REDIS_URL and (last := queue_state.last_sweep()) is not None:
        sweep.add_metric([], _seconds_since(last))
    yield from (messages, oldest, sweep)


def _recovery_gauge() -> GaugeMetricFamily:
    text = "Seconds until another worker continued the run of a dead one, in the last 24 hours: median and longest."
    family = _gauge("recovery_seconds", text, labels=["quantile"])
    times = queue_state.recoveries_of_last_day()
    if times is not None:
        family.add_metric(["0.5"], times.median_s)
        family.add_metric(["1"], times.worst_s)
    return family


def _unended(rows: QuerySet[Any], name: str, help_text: str) -> GaugeMetricFamily:
    counts = dict(rows.filter(completed_at=None).values_list("status").annotate(number=Count("pk")).order_by())
    family = _gauge(name, help_text, labels=["status"])
    for status in _UNENDED:
        family.add_metric([status.value], counts.get(status.value, 0))
    return family


def _sink_gauges() -> Iterator[Metric]:
    names = ["project", "sink", "kind"]
    lag = _gauge("sink_lag_seconds", "How long the oldest unsent event has waited.", labels=names)
    failures = _gauge("sink_failures", "Failed attempts since the last success.", labels=names)
    dead = _gauge("sink_dead_deliveries", "Deliveries that were given up.", labels=names)
    text = "Whether the sink is enabled, and the telemetry of its project on."
    enabled = _gauge("sink_enabled", text, labels=names)
    sent = CounterMetricFamily(f"{PREFIX}sink_events", "Events that sinks have accepted.", labels=names)
    for sink in sink_health.with_health(Sink.objects.order_by("pk")):
        row: Any = sink
        own = [sink.project.slug if sink.project is not None else "", sink.name, sink.kind]
        lag.add_metric(own, sink_health.lag_s(sink) if sink.is_sending else 0)
        failures.add_metric(own, row.cursor.failures)
        dead.add_metric(own, row.dead_deliveries)
        enabled.add_metric(own, int(sink.is_sending))
        sent.add_metric(own, row.cursor.sent_events)
    yield from (lag, failures, dead, enabled, sent)


def _gauge(
    name: str, help_text: str, value: float | None = None, *, labels: Sequence[str] | None = None
) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", help_text, value=value, labels=labels)


def _seconds_since(moment: datetime | None) -> float:
    return 0.0 if moment is None else database_clock.seconds_between(moment, database_clock.now())


def _parsed(text: str) -> Labels:
    """Return stored labels as a mapping, without the escapes of `metric_counts.labels`."""
    return {name: value.replace('\\"', '"').replace("\\\\", "\\") for name, value in _LABEL.findall(text)}
