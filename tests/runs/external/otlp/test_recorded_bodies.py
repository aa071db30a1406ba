"""Bodies of real exporters become runs; recounted here directly from the bodies, sharing no code."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from runs.models import AgentRun, OtlpItem
from tests.support.factories import make_project
from tests.support.otlp import JSON, PROTOBUF, TRACE, Exporter, Span
from tests.support.recordings import counts, recording

pytestmark = pytest.mark.django_db
#: The scope whose spans hold the tokens of all calls, and the names of its two counts.
GEN_AI = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
COUNTED = {
    "traceloop-anthropic-openai.pb": ("opentelemetry.instrumentation", *GEN_AI),
    "openinference-anthropic-openai.pb": ("openinference", "llm.token_count.prompt", "llm.token_count.completion"),
    "js-exporter.json": ("js.agent", *GEN_AI),
}


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(make_project("otel"))


def spans_in(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return scope and span, with plain attributes."""
    if path.suffix == ".json":
        document = json.loads(path.read_text())
    else:
        request = ExportTraceServiceRequest()
        request.ParseFromString(path.read_bytes())
        document = MessageToDict(request)
    found = []
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                plain = {pair["key"]: next(iter(pair["value"].values()), None) for pair in span.get("attributes", [])}
                found.append((scope["scope"]["name"], {**span, "attributes": plain}))
    return found


def recounted(path: Path) -> tuple[int, int]:
    scope, *names = COUNTED[path.name]
    mine = [span["attributes"] for name, span in spans_in(path) if name.startswith(scope)]
    return tuple(sum(int(one.get(name, 0)) for one in mine) for name in names)  # type: ignore[return-value]


def tools_in(path: Path) -> Counter[tuple[str, bool]]:
    """Count the tools that ran, by name and failure."""
    return Counter(
        (span["attributes"]["gen_ai.tool.name"], span.get("status", {}).get("code") in (2, "STATUS_CODE_ERROR"))
        for _, span in spans_in(path)
        if span["attributes"].get("gen_ai.operation.name") == "execute_tool"
    )


@pytest.mark.parametrize("name", COUNTED)
def test_tokens_tools_and_parents_match_the_body(exporter: Exporter, name: str) -> None:
    path = recording(f"otlp/captured/{name}")
    content_type = JSON if path.suffix == ".json" else PROTOBUF
    answer = exporter.post(path.read_bytes(), content_type=content_type)
    assert (answer.status_code, answer["Content-Type"]) == (200, content_type)
    assert answer.content == (b"{}" if content_type == JSON else b"")
    exporter.settle()

    [run] = exporter.runs()
    assert (run.source, run.status) == (AgentRun.Source.OTLP, "completed")
    assert (run.input_tokens, run.output_tokens) == recounted(path)
    assert run.agent_config["agent_id"] in {"demo", "js a"}
    ended = run.tool_calls.exclude(status="unknown").values_list("tool_name", "status")
    assert Counter((tool, status == "error") for tool, status in ended) == tools_in(path)
    assert OtlpItem.objects.filter(group__run=run, filed_under=run.pk).count() == len(spans_in(path))
    assert run.errors.count() == ("js" not in name)
    # Sending it again, even after the end, changes nothing.
    before = counts(exporter.project)
    for body in (path.read_bytes(), path.read_bytes()):
        assert exporter.post(body, content_type=content_type).status_code == 200
        exporter.settle()
    assert counts(exporter.project) == before


def test_two_libraries_tracing_the_same_calls_give_the_same_messages(exporter: Exporter) -> None:
    for name in list(COUNTED)[:2]:
        exporter.post((recording(f"otlp/captured/{name}")).read_bytes())
    exporter.settle()

    one, other = exporter.runs()
    contents = [
        [
            (row.role, [{**part, "timestamp": None, "signature": None} for part in row.content["parts"]])
            for row in run.messages.order_by("position")
        ]
        for run in (one, other)
    ]
    assert contents[0] == contents[1]
    assert (one.step_count, one.prompt, one.session_id) == (7, "parallel", "conv-1")
    thinking = one.messages.get(position=6).content["parts"]
    assert [part["part_kind"] for part in thinking] == ["thinking", "text"]
    inputs = one.tool_calls.order_by("step_number", "pk").values_list("input", flat=True)
    assert list(inputs[:2]) == [{"city": "Zürich"}, {"tz": "Europe/Zurich"}]


def test_a_body_of_the_langfuse_sdk(exporter: Exporter) -> None:
    body = (recording("otlp/captured/langfuse-sdk.pb")).read_bytes()
    exporter.post(body, "/api/public/otel/v1/traces")
    exporter.settle()

    [run] = exporter.runs()
    # Langfuse sums every count with "input" in its name.
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens) == (110, 3, 100)
    assert (str(run.cost_usd), run.cost_source) == ("0.00100000", "reported")
    assert (run.agent_config["agent_id"], run.agent_config["model"]) == ("agent-run", "claude-sonnet-4-5")
    assert list(run.tool_calls.values_list("tool_name", "status", "output")) == [
        ("bash", "error", "error: no such file")
    ]
    assert (run.prompt, run.result) == ("hi", "done")


def test_spans_of_other_work_create_no_run(exporter: Exporter) -> None:
    examples = recording("otlp/json-examples")
    assert exporter.post((examples / "trace.json").read_bytes(), content_type=JSON).content == b"{}"
    exporter.settle()
    exporter.settle(700)

    assert exporter.runs() == []
    assert not OtlpItem.objects.exists()
    for signal, count in (("logs", "rejectedLogRecords"), ("metrics", "rejectedDataPoints")):
        answer = exporter.post((examples / f"{signal}.json").read_bytes(), f"/v1/{signal}", JSON)
        rejected = answer.json()["partialSuccess"]
        assert int(rejected[count]) > 0
        assert rejected["errorMessage"]


def test_spans_of_the_ai_sdk_are_counted(exporter: Exporter) -> None:
    [recorded] = json.loads((recording("otlp/vercel-ai-v6-spans-by-operation.json")).read_text())
    exporter.send(Span(1, name=recorded["name"], trace=TRACE, attributes=recorded["attributes"]))
    exporter.settle()

    [run] = exporter.runs()
    assert (run.input_tokens, run.agent_config["model"]) == (10, "text-embedding-3-small")
