"""Runs as OTLP traces: importing them through this site's OTLP endpoint gives equal runs."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from runs.models import AgentRun, Delivery, SinkCursor
from runs.telemetry import sink_changes
from tests.support.api import Runner, event
from tests.support.factories import drive, make_project, make_run
from tests.support.loopback_servers import Receiver
from tests.support.otlp import Exporter, summary
from tests.support.project_rows import export, make_sink, make_troubled_run

pytestmark = pytest.mark.django_db(transaction=True)


def spans_of(receiver: Receiver) -> list[Any]:
    requests = [ExportTraceServiceRequest.FromString(gzip.decompress(each.body)) for each in receiver.received]
    return [span for each in requests for of in each.resource_spans for scope in of.scope_spans for span in scope.spans]


def attributes_of(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def contents_of(run: AgentRun) -> dict[str, Any]:
    """Return the contents of a run that a reader of the trace sees."""
    run.refresh_from_db()
    parts = [
        [part.get("content", part.get("args")) for part in row.content["parts"] if part.get("content") != ""]
        for row in run.messages.order_by("position")
    ]
    calls = run.tool_calls.order_by("message__position", "call_id")
    return {
        **summary(run),
        "parent": None,
        "parts": parts,
        "calls": list(calls.values_list("tool_name", "call_id", "status", "input", "output")),
        "cached": (run.cache_read_tokens, run.cache_write_tokens),
        "result": run.result or run.summary,
    }


@pytest.mark.parametrize("source", ["native", "imported"])
def test_a_run_that_is_read_back_is_equal(receiver: Receiver, source: str) -> None:
    run = make_run()
    make_sink(run.project, "otlp", {"url": receiver.url}, secrets={"headers": {"X-Key": "abc"}})
    drive(run)
    if source == "imported":
        # The imported run is exported and imported once more, as the run of another program.
        run = read_back(run, receiver)
        receiver.received.clear()
        make_sink(run.project, "otlp", {"url": receiver.url}, from_start=True)

    again = read_back(run, receiver)

    assert contents_of(again) == contents_of(run)
    assert receiver.received[0].headers["content-type"] == "application/x-protobuf"


def read_back(run: AgentRun, receiver: Receiver) -> AgentRun:
    export()
    other = Exporter(make_project())
    for request in receiver.received:
        headers = {"content-encoding": "gzip"}
        assert other.post(request.body, **headers).status_code == 200
    other.settle()
    [again] = other.runs()
    return again


def test_names_follow_the_semantic_conventions(receiver: Receiver) -> None:
    run = make_run()
    make_sink(run.project, "otlp", {"url": receiver.url})
    drive(run)
    export()

    spans = spans_of(receiver)
    assert {span.trace_id for span in spans} == {run.pk.bytes}
    by_operation: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        attributes = attributes_of(span)
        by_operation.setdefault(attributes["gen_ai.operation.name"], []).append(attributes)
    [root] = [span for span in spans if not span.parent_span_id]
    assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
    assert (root.name, root.status.code) == (f"invoke_agent {run.agent.slug}", 0)
    assert len(by_operation["chat"]) == run.messages.filter(role="assistant").count()
    assert len(by_operation["execute_tool"]) == run.tool_calls.count()
    assert by_operation["chat"][0]["gen_ai.usage.cache_read.input_tokens"] == 19879
    failed = [span for span in spans if span.status.code == 2]
    assert {attributes_of(span)["error.type"] for span in failed} == {"tool_error"}


@pytest.mark.parametrize(("ending", "error"), [("failed", "network_error"), ("stopped", "operator")])
def test_a_run_that_did_not_complete_has_a_failed_trace(receiver: Receiver, ending: str, error: str) -> None:
    project = make_project()
    make_sink(project, "otlp", {"url": receiver.url})
    run = make_troubled_run(project, ending)
    export()

    spans = spans_of(receiver)
    [root] = [span for span in spans if not span.parent_span_id]
    assert (root.status.code, attributes_of(root)["error.type"]) == (2, error)
    assert attributes_of(root)["agentops.run.status"] == ending
    # The call that was still running is closed with the run.
    assert sorted(span.name for span in spans if span.status.code == 2) == sorted(
        ["execute_tool grep", "execute_tool write", root.name]
    )
    again = read_back(run, receiver)
    assert (again.status, again.status_reason) == (ending, run.status_reason)
    assert (again.error_type, again.error_message) == (run.error_type, run.error_message)


def test_rejected_spans_are_a_dead_delivery(receiver: Receiver) -> None:
    run = make_run()
    sink = make_sink(run.project, "otlp", {"url": receiver.url})
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans, answer.partial_success.error_message = 2, "too old"
    receiver.answer(200, body=answer.SerializeToString())
    drive(run)
    export()

    dead = Delivery.objects.get(sink=sink)
    assert (dead.state, dead.error) == ("dead", "2 spans: too old")


def test_a_test_message_is_a_separate_trace(receiver: Receiver) -> None:
    sink = make_sink(make_project(), "otlp", {"url": receiver.url})
    sink_changes.send_test(sink, by="test")
    export()

    assert [span.name for span in spans_of(receiver)] == ["invoke_agent agentops"]
    assert Delivery.objects.get().state == "sent"


@pytest.mark.parametrize("year", ["0001", "1969", "2555", "9999"])
def test_a_wrong_clock_does_not_stop_a_sink(receiver: Receiver, year: str) -> None:
    project = make_project()
    sink = make_sink(project, "otlp", {"url": receiver.url})
    record = Runner(project)
    turn = {"text": "hello", "durationMs": 2**62, "toolCalls": [{"id": "c", "name": "read"}]}
    day = "01-01T00:00:00Z" if year == "0001" else "12-31T23:59:59Z"
    documents = [
        event("run.started", {"agent": "coder"}),
        event("llm.turn.end", turn, ts=f"{year}-{day}"),
        event("tool.end", {"callId": "c", "output": "x"}, ts=f"{year}-{day}"),
        event("run.completed", {"result": "ok"}, ts=f"{year}-{day}"),
    ]
    assert record({"events": documents}).status_code == 200

    export()

    assert SinkCursor.objects.get(pk=sink.pk).failures == 0
    assert "execute_tool read" in [span.name for span in spans_of(receiver)]
