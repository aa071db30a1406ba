"""Concurrent requests and workers for one trace: each span is stored once, and the trace is one run."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from runs.external.otlp import settling
from runs.models import OtlpGroup, OtlpItem
from tests.support.factories import make_project
from tests.support.otlp import TRACE, Exporter, agent, chat, tool, traces
from tests.support.timing import at_once, eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]
POSTERS, TURNS, LATER = 6, 12, timedelta(minutes=1)


def test_a_trace_sent_and_processed_concurrently(transactional_db: None) -> None:
    exporter = Exporter(make_project("otel"))
    spans = [agent(1), *(span for n in range(TURNS) for span in (chat(10 + 2 * n, 1), tool(11 + 2 * n, 1)))]

    def post(number: int) -> Any:
        # Each span is sent by two of them.
        mine = [span for index, span in enumerate(spans) if index % (POSTERS // 2) == number // 2]
        return [exporter.post(traces(span).SerializeToString()).status_code for span in mine]

    answers = [status for of_one in at_once(post, POSTERS) for status in of_one]
    assert answers == [200] * 2 * len(spans)
    assert OtlpGroup.objects.count() == 1
    assert OtlpItem.objects.count() == len(spans)

    for _ in range(2):  # first the spans, then the end of the run
        before = timezone.now() - LATER
        OtlpGroup.objects.update(due_at=before, received_at=before)
        OtlpItem.objects.update(received_at=before)
        at_once(lambda _: settling.settle_due(), POSTERS)
    [run] = exporter.runs()
    assert run.status == "completed"
    assert (run.step_count, run.input_tokens) == (TURNS, 10 * TURNS)
    assert run.tool_calls.count() == TURNS


@pytest.mark.postgres
def test_spans_arriving_while_a_worker_deletes_their_trace_are_stored(transactional_db: None) -> None:
    """A worker deletes a trace without an agent or a call, for example if its first spans come from a web server."""
    exporter = Exporter(make_project("otel"))
    OtlpGroup.objects.create(project=exporter.project, key=TRACE, received_at=timezone.now())
    answers: list[int] = []
    sending = threading.Thread(target=lambda: answers.append(post_one(exporter)))
    with transaction.atomic():
        OtlpGroup.objects.all().delete()
        sending.start()
        eventually(somebody_waits, why="the spans wait for the worker")
    sending.join(60)

    assert answers == [200]
    assert OtlpItem.objects.count() == 1


def post_one(exporter: Exporter) -> int:
    try:
        return int(exporter.post(traces(agent(1)).SerializeToString()).status_code)
    finally:
        connection.close()


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])
