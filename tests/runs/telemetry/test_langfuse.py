"""Langfuse: the shape of the trace through both of its APIs; every body is valid by its published schema."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import json
import warnings
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings as site
from django.utils import timezone
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agentops.base.backing_services import EnvironmentSink, TelemetrySettings
from agentops.base.http.guarded_client import HttpAnswer
from runs.models import Delivery, Sink, SinkCursor
from runs.telemetry import sink_changes
from runs.telemetry.langfuse_batch_sink import MAX_EVENTS, batches_of, refused_events
from runs.telemetry.observation import Observation, ObservationKind, TraceFacts
from runs.telemetry.sink_claims import PATIENCE
from runs.telemetry.sink_kind import OutgoingEvent
from tests.support import api, remote_samples
from tests.support.factories import drive, make_project, make_run
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import TOOLS, export, make_sink, make_troubled_run, wake
from tests.support.remote import Program
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
KEYS: dict[str, Any] = {"secrets": {"secret_key": "sk-lf-1"}}
Check = Callable[[Any], list[Any]]


@pytest.fixture(scope="module")
def schema_errors(shared: Path) -> Check:
    """Return a function that lists the errors of a body by Langfuse's schema."""
    spec = importlib.util.spec_from_file_location("validate_langfuse", shared / "peers/validate_langfuse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # It reads the file for each body and leaves it open.
    module.schema = functools.cache(module.schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        module.schema(shared / "data/langfuse-openapi.yml")
    return lambda body: module.check(shared / "data/langfuse-openapi.yml", body)


def options(receiver: Receiver) -> dict[str, str]:
    return {"base_url": receiver.url.removesuffix("/in"), "public_key": "pk-lf-1"}


def merged(receiver: Receiver) -> dict[str, dict[str, Any]]:
    """Return the stored state of Langfuse: the trace under `trace`, and the observations by name; later fields win."""
    held: dict[str, dict[str, Any]] = {}
    for event in (event for request in receiver.received for event in request.json["batch"]):
        key = "trace" if event["type"] == "trace-create" else event["body"]["id"]
        held[key] = held.get(key, {}) | event["body"]
    return {key if key == "trace" else body["name"]: body for key, body in held.items()}


@pytest.mark.parametrize("ending", ["completed", "failed", "stopped"])
def test_the_tree_of_a_run(receiver: Receiver, schema_errors: Check, ending: str) -> None:
    project = make_project()
    make_sink(project, "langfuse_batch", options(receiver), **KEYS)
    run = make_troubled_run(project, ending)
    export()

    for request in receiver.received:
        assert schema_errors(request.json) == []
        assert request.path == "/api/public/ingestion"
        assert b64decode(request.headers["authorization"].removeprefix("Basic ")) == b"pk-lf-1:sk-lf-1"
    held = merged(receiver)
    assert set(held) == {"trace", "agent-run", "turn-0", "turn-1", "m-1", *TOOLS}
    assert held["trace"]["id"] == run.pk.hex
    assert (held["trace"]["name"], held["trace"]["sessionId"]) == ("agent-run", str(run.root_run_id))
    parents = {name: body.get("parentObservationId") for name, body in held.items() if name != "trace"}
    ids = {name: body["id"] for name, body in held.items()}
    assert parents["agent-run"] is None
    assert parents["turn-0"] == parents["turn-1"] == ids["agent-run"]
    assert (parents["read"], parents["grep"], parents["write"]) == (ids["turn-0"], ids["turn-0"], ids["turn-1"])
    levels = {name: body["level"] for name, body in held.items() if name != "trace"}
    has_failed = ending != "completed"
    assert (levels["read"], levels["grep"]) == ("DEFAULT", "ERROR")
    assert (levels["write"], levels["agent-run"]) == (("ERROR", "ERROR") if has_failed else ("DEFAULT", "DEFAULT"))
    assert held["grep"]["statusMessage"] == "no such file"
    assert all(body.get("endTime") for name, body in held.items() if name != "trace")
    assert held["trace"]["metadata"]["status"] == ending
    assert held["m-1"]["usageDetails"] == {"input": 10, "output": 5, "input_cached_tokens": 90}
    if ending == "completed":
        assert held["trace"]["output"] == held["agent-run"]["output"] == "Done."


def test_a_step_of_a_remote_run_without_a_model_belongs_to_the_run(receiver: Receiver, schema_errors: Check) -> None:
    program = Program(make_project())
    make_sink(program.project, "langfuse_batch", options(receiver), **KEYS)
    program.start_run()
    remote_samples.complete(program)
    export()

    assert [schema_errors(request.json) for request in receiver.received] == [[]] * len(receiver.received)
    held = merged(receiver)
    run, turn = held["agent-run"]["id"], held["turn-1"]["id"]
    names = ("turn-1", "read_invoices", "charge", "fetch_key", "render_report", "notify")
    assert [held[name]["parentObservationId"] for name in names] == [run, run, turn, run, run, run]
    assert {name for name in held if name.startswith("turn-")} == {"turn-1", "turn-2"}  # of the model calls
    assert all(body.get("endTime") for name, body in held.items() if name != "trace")
    assert held["trace"]["metadata"]["source"] == "remote"


def test_a_trace_comes_before_its_turns_and_a_turn_before_its_tools(receiver: Receiver, schema_errors: Check) -> None:
    run = make_run()
    make_sink(run.project, "langfuse_batch", options(receiver), from_start=True, **KEYS)
    drive(run)
    export()

    known = set()
    for event in (event for request in receiver.received for event in request.json["batch"]):
        body = event["body"]
        datetime.fromisoformat(event["timestamp"])
        if event["type"] != "trace-create":
            assert body["traceId"] in known
            assert body.get("parentObservationId") in (None, *known)
        known.add(body["id"])
    assert [schema_errors(request.json) for request in receiver.received] == [[]] * len(receiver.received)


def test_repeated_requests_have_the_same_ids(receiver: Receiver) -> None:
    project = make_project()
    sink = make_sink(project, "langfuse_batch", options(receiver), **KEYS)
    before = SinkCursor.objects.get(pk=sink.pk).event_id
    make_troubled_run(project, "completed")
    export()
    SinkCursor.objects.filter(pk=sink.pk).update(event_id=before)
    export()

    first, again = receiver.received
    assert [event["id"] for event in first.json["batch"]] == [event["id"] for event in again.json["batch"]]
    assert len({event["id"] for event in first.json["batch"]}) == len(first.json["batch"])


def test_years_have_four_digits(receiver: Receiver) -> None:
    project = make_project()
    make_sink(project, "langfuse_batch", options(receiver), **KEYS)
    clock = {"ts": "0999-12-31T23:59:59Z"}
    turn = {"text": "hello", "toolCalls": [{"id": "c", "name": "read"}]}
    started = api.event("run.started", {"agent": "coder"}, **clock)
    assert api.Runner(project)({"events": [started, api.event("llm.turn.end", turn, **clock)]}).status_code == 200
    export()

    times = [each["body"].get("startTime") for each in receiver.received[0].json["batch"]]
    assert "0999-12-31T23:59:59.000000Z" in times


def test_individually_refused_events(receiver: Receiver) -> None:
    project = make_project()
    sink = make_sink(project, "langfuse_batch", options(receiver), **KEYS)
    passing = {"successes": [], "errors": [{"id": "a", "status": 500, "message": "later"}]}
    final = {"successes": [], "errors": [{"id": "a", "status": 400, "message": "bad level"}]}
    for _ in range(PATIENCE):
        receiver.answer(207, body=json.dumps(passing).encode())
    receiver.answer(207, body=json.dumps(final).encode())
    make_troubled_run(project, "completed")
    export()
    assert wake(sink).failures == PATIENCE
    assert not Delivery.objects.exists()
    export()

    assert Delivery.objects.get().error == "a: 400 bad level"
    assert wake(sink).failures == 0


def test_a_large_run_is_sent_in_several_requests(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    from runs.telemetry import langfuse_batch_sink

    monkeypatch.setattr(langfuse_batch_sink, "MAX_BYTES", 2000)
    project = make_project()
    make_sink(project, "langfuse_batch", options(receiver), **KEYS)
    make_troubled_run(project, "completed")
    export()

    assert len(receiver.received) > 3
    assert set(merged(receiver)) == {"trace", "agent-run", "turn-0", "turn-1", "m-1", *TOOLS}


def test_the_same_tree_through_otlp(receiver: Receiver) -> None:
    project = make_project()
    make_sink(project, "langfuse_otlp", options(receiver), **KEYS)
    run = make_troubled_run(project, "failed")
    export()

    [request] = receiver.received
    assert request.path == "/api/public/otel/v1/traces"
    assert request.headers["x-langfuse-ingestion-version"] == "4"
    decoded = ExportTraceServiceRequest.FromString(gzip.decompress(request.body))
    spans = {span.name: span for span in decoded.resource_spans[0].scope_spans[0].spans}
    assert set(spans) == {"agent-run", "turn-0", "turn-1", "m-1", *TOOLS}
    assert {span.trace_id for span in spans.values()} == {run.pk.bytes}
    assert spans["write"].parent_span_id == spans["turn-1"].span_id
    assert spans["turn-1"].parent_span_id == spans["agent-run"].span_id
    attributes = {pair.key: pair.value.string_value for pair in spans["agent-run"].attributes}
    assert attributes["langfuse.trace.name"] == "agent-run"
    assert attributes["langfuse.observation.type"] == "agent"
    assert attributes["langfuse.observation.level"] == "ERROR"
    generation = {pair.key: pair.value.string_value for pair in spans["m-1"].attributes}
    assert json.loads(generation["langfuse.observation.usage_details"])["input_cached_tokens"] == 90


def test_langfuse_keys_in_the_environment_are_sufficient(receiver: Receiver, settings: Any) -> None:
    run, other = make_run(), make_run()
    configured = EnvironmentSink("langfuse", "langfuse_otlp", options(receiver), {"secret_key": "sk-lf-1"})
    settings.AGENTOPS_TELEMETRY = TelemetrySettings(sinks=(configured,))
    sink_changes.store_environment_sinks()
    sink_changes.store_environment_sinks()
    drive(run)
    drive(other)
    export()

    names = [span.trace_id for each in receiver.received for span in spans_in(each.body)]
    assert set(names) == {run.pk.bytes, other.pk.bytes}
    sink = Sink.objects.get()
    assert (sink.project, sink.sealed, sink.origin) == (None, None, "environment")

    settings.AGENTOPS_TELEMETRY = TelemetrySettings()
    sink_changes.store_environment_sinks()
    sink.refresh_from_db()
    assert (sink.is_enabled, sink.disabled_reason) == (False, sink_changes.ABSENT)


def spans_in(body: bytes) -> list[Any]:
    decoded = ExportTraceServiceRequest.FromString(gzip.decompress(body))
    return list(decoded.resource_spans[0].scope_spans[0].spans)


def test_a_test_message_is_valid_too(receiver: Receiver, schema_errors: Check) -> None:
    sink = make_sink(make_project(), "langfuse_batch", options(receiver), **KEYS)
    sink_changes.send_test(sink, by="test")
    export()

    assert schema_errors(receiver.received[0].json) == []
    assert site.AGENTOPS_TELEMETRY.sinks == ()


@pytest.mark.parametrize(("status", "is_final"), [(400, True), (500, False)])
def test_errors_beyond_the_read_limit_of_a_response_count(receiver: Receiver, status: int, is_final: bool) -> None:
    """If all events are refused, each with a long reason, the response is longer than the part that is read."""
    project = make_project()
    sink = make_sink(project, "langfuse_batch", options(receiver), **KEYS)
    errors = [{"id": str(number), "status": status, "message": "invalid " * 60} for number in range(200)]
    for _ in range(1 if is_final else PATIENCE):
        receiver.answer(207, body=json.dumps({"successes": [], "errors": errors}).encode())
    make_troubled_run(project, "completed")
    export()

    cursor = SinkCursor.objects.get(pk=sink.pk)
    assert (cursor.dead_events > 0, cursor.failures) == (is_final, 0 if is_final else PATIENCE)
    assert Delivery.objects.filter(state="dead").count() == is_final


def test_a_long_endlessly_nested_response_names_no_event() -> None:
    body = b'{"errors":[{"id":"1","status":400,"message":"no"},' + b"[" * 60_000

    assert refused_events(HttpAnswer(207, {}, body, truncated=True)) == ["1: 400 no"]


def test_a_response_names_no_more_events_than_can_be_read() -> None:
    facts = TraceFacts(UUID(int=1), "s", "a", "p", "m", "t")
    event = OutgoingEvent(Event(ts=timezone.now()), "e", {})
    spans = [
        Observation(ObservationKind.TOOL, f"{n:016}", None, "t", facts, event, event.row.ts)
        for n in range(MAX_EVENTS + 1)
    ]
    assert [len(json.loads(body)["batch"]) for body in batches_of(spans)] == [MAX_EVENTS, 1]
