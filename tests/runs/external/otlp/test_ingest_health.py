"""The ingest page counts each OTLP span and log record once, by its result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone
from pytest_django import Settings

from agentops.accounts.access import SYSTEM
from agentops.accounts.keys import revoke
from agentops.accounts.models import ApiKey, Project
from runs.external import ingest_counts
from runs.external.otlp import recording
from runs.models import IngestCount
from runs.pages.ingest_page import health_of
from tests.support.factories import key_prefix, make_project, with_key
from tests.support.otlp import JSON, TRACE, Exporter, Span, agent, chat, logs, tool, traces

pytestmark = pytest.mark.django_db
PROMPT = {"body": "claude_code.user_prompt", "session.id": "s-1", "event.name": "user_prompt", "prompt": "Go"}
METRICS = b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"gauge": {"dataPoints": [{"asInt": "1"}]}}]}]}]}'
OTHER = {"body": "x", "event.name": "something.else"}


@pytest.fixture
def project() -> Project:
    """A project, with the counts of other tests in this process removed."""
    ingest_counts.flush()
    IngestCount.objects.all().delete()
    return make_project("alpha")


@pytest.fixture
def exporter(project: Project) -> Exporter:
    return Exporter(project)


def counted() -> Counter[tuple[str, str]]:
    ingest_counts.flush()
    counts: Counter[tuple[str, str]] = Counter()
    for row in IngestCount.objects.all():
        counts[row.sender, row.outcome] += row.count
    return counts


def send(exporter: Exporter, *spans: Span) -> int:
    return int(exporter.post(traces(*spans).SerializeToString()).status_code)


@pytest.mark.every_database
def test_each_entry_is_counted_once_by_its_result(exporter: Exporter, project: Project) -> None:
    request = traces(agent(1), chat(2, 1), chat(3, 1), chat(4, 1))
    spans = request.resource_spans[0].scope_spans[0].spans
    spans[2].span_id = b"\1"
    spans[3].name = "x" * 2_100_000
    spans.add().CopyFrom(spans[1])
    assert exporter.post(request.SerializeToString()).status_code == 200
    assert send(exporter, agent(1), chat(2, 1, tokens=(9, 9)), tool(5, 1)) == 200
    records = logs([PROMPT, OTHER, OTHER], "claude-code").SerializeToString()
    assert exporter.post(records, path="/v1/logs").status_code == 200

    sender = f"key:{key_prefix(exporter.headers)}"
    assert counted() == {
        (sender, "accepted"): 4,
        (sender, "duplicate"): 2,
        (sender, "invalid_span_id"): 1,
        (sender, "entry_too_large"): 1,
        (sender, "span_id_conflict"): 1,
        (sender, "unknown_log_event"): 2,
    }
    [health] = health_of(project, timezone.now())
    assert (health.sender, health.duplicates, health.rejected["unknown_log_event"]) == (sender, 2, 2)
    assert health.short_rate > 0
    assert health.last_at is not None


def test_a_refused_request_is_counted_once_if_its_key_is_known(
    exporter: Exporter, project: Project, settings: Settings
) -> None:
    body = traces(agent(1)).SerializeToString()
    reader = Exporter(project)
    reader.headers = with_key(project, "read")
    sent = [
        (exporter.post(body[:-3]), 400),
        (exporter.post(body, content_type="text/plain"), 415),
        (reader.post(body), 403),
        (exporter.post(body, Authorization="Bearer nonsense"), 401),
        (exporter.post(METRICS, path="/v1/metrics", content_type=JSON), 200),
    ]
    settings.AGENTOPS_RATE_RUN_EVENTS = 1
    sent.append((exporter.post(traces(agent(1), chat(2, 1), Span(3, trace=TRACE)).SerializeToString()), 429))
    revoke(ApiKey.objects.get(prefix=key_prefix(exporter.headers)), actor=SYSTEM)
    sent.append((exporter.post(body), 401))
    assert [answer.status_code for answer, _ in sent] == [status for _, status in sent]
    assert "1" in sent[4][0].json()["partialSuccess"]["rejectedDataPoints"]

    sender, other = f"key:{key_prefix(exporter.headers)}", f"key:{key_prefix(reader.headers)}"
    assert counted() == {
        (sender, "invalid_otlp"): 1,
        (sender, "unsupported_media_type"): 1,
        (sender, "rate_limited"): 1,
        (sender, "auth_revoked"): 1,
        (other, "scope_required"): 1,
    }


def test_items_stored_before_a_database_failure_are_counted(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter sends the whole request again, whose stored part then counts as duplicate."""
    real = recording.store_items

    def store(sender: Any, key: str, items: Any) -> Any:
        if key != TRACE:
            raise OperationalError("the connection is lost")
        return real(sender, key, items)

    monkeypatch.setattr(recording, "store_items", store)
    spans = [agent(1), chat(2, 1), agent(3, trace=TRACE[::-1])]
    assert send(exporter, *spans) == 503
    monkeypatch.undo()
    assert send(exporter, *spans) == 200
    sender = f"key:{key_prefix(exporter.headers)}"
    assert counted() == {(sender, "accepted"): 3, (sender, "duplicate"): 2}
