"""Metrics: counts equal the rows, only operators may read them, and reading them is cheap."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from agentops.base import database_clock
from agentops.base.backing_services import TelemetrySettings
from agentops.base.database_clock import Now
from runs.lifecycle import transitions
from runs.models import AgentRun, Attempt, Chore, MetricCount
from runs.telemetry import metric_counts, metric_exposition
from runs.worker import worker
from tests.support.engine import empty_broker, send, use_broker
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.machine import ROOT
from tests.support.project_rows import append, make_sink, make_troubled_run

pytestmark = pytest.mark.django_db(transaction=True)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def redis_broker(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty Redis, which is also the broker of this process."""
    use_broker(redis_url, monkeypatch)
    return redis_url


def read(client: Client | None = None, **headers: str) -> Samples:
    metric_exposition.CACHE.clear()
    answer = (client or Client()).get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.content
    families = text_string_to_metric_families(answer.content.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for each in families
        for sample in each.samples
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for (each, own), value in samples.items() if each == name and set(labels.items()) <= set(own))


def test_counts_equal_the_rows() -> None:
    read()
    project = make_project("shop")
    run = drive(make_run(make_agent(project)))
    failed = make_troubled_run(project, "failed")
    make_run(make_agent(project))
    assert metric_counts.catch_up() > 0
    assert metric_counts.catch_up() == 0

    samples = read()
    assert total(samples, "agentops_runs_created_total", project="shop") == 3
    assert total(samples, "agentops_runs_ended_total", status="completed") == 1
    assert total(samples, "agentops_runs_ended_total", status="failed") == 1
    assert total(samples, "agentops_runs", status="queued") == 1
    both = [AgentRun.objects.get(pk=each.pk) for each in (run, failed)]
    for token, column in (("input", "input_tokens"), ("output", "output_tokens"), ("cache_read", "cache_read_tokens")):
        counted = total(samples, "agentops_tokens_total", project="shop", token=token)
        assert counted == sum(getattr(each, column) for each in both), token
    assert total(samples, "agentops_cost_usd_total") == pytest.approx(float(run.cost_usd or 0))
    calls = run.tool_calls.count() + 3
    assert total(samples, "agentops_tool_seconds_count") == calls
    assert total(samples, "agentops_tool_seconds_bucket", le="+Inf") == calls
    assert total(samples, "agentops_tool_seconds_count", tool="Edit", status="error") == 2
    assert total(samples, "agentops_turn_seconds_count") == run.step_count + 2
    assert ("agentops_queue_age_seconds", ()) in samples
    assert total(samples, "agentops_stream_clients") == 0


def test_a_sink_that_is_behind_is_visible() -> None:
    run = make_run()
    sink = make_sink(run.project, "jsonl", {})
    append(run, "waits")
    samples = read()
    labels = {"project": run.project.slug, "sink": sink.name, "kind": "jsonl"}
    assert total(samples, "agentops_sink_enabled", **labels) == 1
    assert ("agentops_sink_lag_seconds", tuple(sorted(labels.items()))) in samples


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.0.0.1", {"X-Forwarded-For": "198.51.100.7"}, 404),
        ("198.51.100.7", {}, 404),
        ("198.51.100.7", {"Authorization": "Bearer wrong"}, 404),
        ("198.51.100.7", {"Authorization": "Bearer scraper-token"}, 200),
        ("10.1.2.3", {}, 200),
    ],
)
def test_only_operators_may_read_metrics(settings: Any, address: str, headers: dict[str, str], status: int) -> None:
    settings.AGENTOPS_TELEMETRY = TelemetrySettings(metrics_token="scraper-token", metrics_allow=("10.0.0.0/8",))

    assert Client(REMOTE_ADDR=address).get("/metrics", headers=headers).status_code == status


def test_reading_takes_few_queries_and_is_cached() -> None:
    for number in range(3):
        make_sink(make_project(), "jsonl", {}, name=f"s{number}")
    read()
    metric_exposition.CACHE.clear()
    with CaptureQueriesContext(connection) as queries:
        Client().get("/metrics")
        Client().get("/metrics")
    assert len(queries) <= 17


def test_the_number_of_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_counts, "MAX_SERIES", 3)
    read()
    drive(make_run())
    metric_counts.catch_up()

    assert set(MetricCount.objects.values_list("name", flat=True)) == {"other"}
    assert total(read(), "agentops_other_total") > 5


def test_hostile_names_are_escaped_in_labels() -> None:
    hostile = 'x"} 1\nagentops_runs_created_total{project="' + "\\"
    own = metric_counts.labels(tool=hostile, status="ok")
    MetricCount.objects.create(name="tool_seconds_count", labels=own, value=1)
    MetricCount.objects.create(name="tool_seconds_bucket", labels=f'{own},le="0.5"', value=1)

    [tool] = {dict(labels)["tool"] for (name, labels) in read() if name == "agentops_tool_seconds_count"}
    assert tool == hostile.replace("\n", "")


def test_the_dashboard_uses_existing_metrics() -> None:
    text = (ROOT / "docs" / "dashboards" / "grafana.json").read_text()
    dashboard = json.loads(text)
    named = set(re.findall(r"\b(agentops_[a-z_]+?)(?:_total|_bucket|_count)?\b(?=[\[{)])", text.replace('\\"', "'")))

    families = {family.name for family in metric_exposition.SiteCollector(0).collect()}
    assert named <= families
    assert len(named) > 10
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_queues_are_counted_with_the_workers_that_serve_them() -> None:
    project = make_project("shop")
    for queue in ("gpu", "default"):
        make_run(make_agent(project, queue=queue))
    worker.announce("host:1:a", ["default", "batch"], 4)

    samples = read()
    assert samples["agentops_workers", ()] == 1
    unserved = {queue: total(samples, "agentops_queue_unserved", queue=queue) for queue in ("gpu", "default", "batch")}
    assert unserved == {"gpu": 1, "default": 0, "batch": 0}
    assert [total(samples, "agentops_queue_runs", queue=queue) for queue in ("gpu", "default", "batch")] == [1, 1, 0]
    assert [total(samples, "agentops_queue_slots", queue=queue) for queue in ("gpu", "default", "batch")] == [0, 4, 4]


@pytest.mark.redis
def test_messages_clocks_and_recoveries_are_measured(redis_broker: str) -> None:
    run = make_run(make_agent(make_project("shop"), queue="gpu"))
    assert not total(read(), "agentops_recovery_seconds")
    AgentRun.objects.update(message_sent_at=Now() - timedelta(minutes=2))
    Chore.objects.create(name="sweep", taken_at=Now() - timedelta(seconds=30))
    empty_broker(redis_broker)
    send(redis_broker, run.pk, queue="gpu", priority=3)
    died_at = database_clock.now() - timedelta(minutes=5)
    lost = make_run()
    for epoch, at in [(1, died_at), (2, died_at + timedelta(seconds=21))]:
        assert transitions.claim(lost.pk, f"host:{epoch}:a")
        transitions.expire_leases(f"host:{epoch}:a")
        Attempt.objects.filter(run=lost).update(claimed_at=at)
    Attempt.objects.filter(run=lost, epoch=1).update(claimed_at=died_at, ended_at=died_at)

    samples = read()

    assert samples["agentops_queue_messages", (("priority", "3"), ("queue", "gpu"))] == 1
    assert total(samples, "agentops_queue_messages", queue="gpu") == 1
    assert 120 <= samples["agentops_message_age_seconds", ()] < 180
    assert 30 <= samples["agentops_sweep_age_seconds", ()] < 90
    for quantile in ("0.5", "1"):
        assert samples["agentops_recovery_seconds", (("quantile", quantile),)] == pytest.approx(21)


def test_queues_have_no_metrics_without_redis(settings: Any) -> None:
    settings.REDIS_URL = ""
    names = {name for name, _ in read()}

    assert not names & {"agentops_queue_messages", "agentops_message_age_seconds", "agentops_sweep_age_seconds"}
