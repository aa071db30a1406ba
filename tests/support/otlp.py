"""OTLP as senders write it: bodies built from short descriptions of spans with the protocol's official library.

Sends them to the site in this process, moves the clock, and summarises the resulting runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import time_machine
from django.test import Client
from django.utils import timezone
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from agentops.accounts.models import Project
from runs.external.otlp import settling
from runs.models import AgentRun
from tests.support.factories import with_key
from tests.support.recordings import check_run

BEGIN = 1_795_000_000_000_000_000
SECOND = 1_000_000_000
TRACE = "5b8efff798038103d269b633813fc60c"
PROTOBUF, JSON = "application/x-protobuf", "application/json"


@dataclass
class Span:
    """A span. Times are in seconds from `BEGIN`."""

    id: int
    parent: int = 0
    at: float = 0
    took: float = 1
    name: str = "span"
    trace: str = TRACE
    flags: int = 257
    error: str | None = None
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)

    def fill(self, message: Any) -> None:
        message.trace_id, message.span_id = bytes.fromhex(self.trace), self.id.to_bytes(8, "big")
        message.parent_span_id = self.parent.to_bytes(8, "big") if self.parent else b""
        message.name, message.flags = self.name, self.flags
        message.start_time_unix_nano = BEGIN + round(self.at * SECOND)
        message.end_time_unix_nano = BEGIN + round((self.at + self.took) * SECOND)
        message.attributes.extend(pairs(self.attributes))
        if self.error is not None:
            message.status.code, message.status.message = 2, self.error
        for name, attributes in self.events:
            message.events.add(name=name, attributes=pairs(attributes))


def agent(id_: int, parent: int = 0, **options: Any) -> Span:
    name = options.pop("agent", f"agent-{id_}")
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    return Span(id_, parent, name=f"invoke_agent {name}", attributes=attributes | options.pop("more", {}), **options)


def chat(id_: int, parent: int = 0, **options: Any) -> Span:
    """Return a model call, by default with 10 input tokens and one output token."""
    tokens = options.pop("tokens", (10, 1))
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "claude-haiku-4-5",
        "gen_ai.usage.input_tokens": tokens[0],
        "gen_ai.usage.output_tokens": tokens[1],
    }
    for name in ("input", "output"):
        if name in options:
            attributes[f"gen_ai.{name}.messages"] = json.dumps(options.pop(name))
    return Span(id_, parent, name="chat", attributes=attributes | options.pop("more", {}), **options)


def tool(id_: int, parent: int = 0, **options: Any) -> Span:
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": options.pop("tool", "bash")}
    return Span(id_, parent, name="execute_tool", attributes=attributes | options.pop("more", {}), **options)


def said(role: str, text: str, *calls: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message in the newest form."""
    return [{"role": role, "parts": [{"type": "text", "content": text}, *({"type": "tool_call", **c} for c in calls)]}]


def traces(*spans: Span, service: str = "tests") -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend(pairs({"service.name": service}))
    scope = resource.scope_spans.add()
    scope.scope.name = "tests"
    for span in spans:
        span.fill(scope.spans.add())
    return request


def logs(records: Iterable[Mapping[str, Any]], service: str) -> ExportLogsServiceRequest:
    """Return log records, one per second, from their attributes. The attribute `body` becomes the record's body."""
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.extend(pairs({"service.name": service}))
    scope = resource.scope_logs.add()
    for number, attributes in enumerate(records):
        record = scope.log_records.add(time_unix_nano=BEGIN + number * SECOND)
        record.body.string_value = attributes.get("body", "")
        record.attributes.extend(pairs({name: value for name, value in attributes.items() if name != "body"}))
    return request


def as_json(request: Any) -> bytes:
    """Return the body as JSON exporters send it, with IDs in hexadecimal."""

    def with_hex(value: Any) -> Any:
        if isinstance(value, list):
            return [with_hex(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            name: _hex(item) if name in ("traceId", "spanId", "parentSpanId") else with_hex(item)
            for name, item in value.items()
        }

    return json.dumps(with_hex(MessageToDict(request))).encode()


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in attributes.items()]


def _value(value: Any) -> AnyValue:
    made = AnyValue()
    match value:
        case bool():
            made.bool_value = value
        case str():
            made.string_value = value
        case int():
            made.int_value = value
        case float():
            made.double_value = value
        case list():
            made.array_value.values.extend(map(_value, value))
        case dict():
            made.kvlist_value.values.extend(pairs(value))
    return made


def _hex(text: str) -> str:
    from base64 import b64decode

    return b64decode(text).hex()


class Exporter:
    """An exporter with an ingest key of a project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.headers = with_key(project, "ingest")

    def post(self, body: bytes, path: str = "/v1/traces", content_type: str = PROTOBUF, **headers: str) -> Any:
        return Client().generic("POST", path, body, content_type=content_type, headers=self.headers | headers)

    def send(self, *spans: Span, service: str = "tests") -> None:
        """Send spans, and check that all are accepted."""
        answer = self.post(traces(*spans, service=service).SerializeToString())
        assert (answer.status_code, answer.content) == (200, b""), answer.content

    def settle(self, seconds: float = 11) -> None:
        """Move the clock forward while a worker repeatedly settles the runs that are due."""
        began = timezone.now()
        for later in sorted({3.0, *range(11, round(seconds), 100), seconds}):
            with time_machine.travel(began + timedelta(seconds=later)):
                settling.settle_due()

    def runs(self) -> list[AgentRun]:
        """Return the project's runs, after checking their invariants."""
        runs = list(AgentRun.objects.filter(project=self.project).order_by("pk"))
        for run in runs:
            check_run(run)
        return runs


def summary(run: AgentRun) -> dict[str, Any]:
    """Return the content of a run, without IDs and arrival times."""
    texts = [
        (row.role, [part.get("content", part.get("tool_name")) for part in row.content["parts"]])
        for row in run.messages.order_by("position")
    ]
    calls = run.tool_calls.order_by("message__position", "call_id")
    return {
        "agent": run.agent_config["agent_id"],
        "status": run.status,
        "parent": run.parent_run.external_id if run.parent_run else None,
        "tokens": (run.input_tokens, run.output_tokens),
        "calls": list(calls.values_list("tool_name", "call_id", "status")),
        "messages": texts,
    }
