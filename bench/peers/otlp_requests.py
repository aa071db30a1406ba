"""Writes OTLP requests for a tracing server, run by the interpreter of its environment.

Arguments: a file, the number of requests, and the spans per request. The file has the length of each request in eight
bytes, followed by its body.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WORDS = [
    "plan",
    "read",
    "write",
    "search",
    "test",
    "merge",
    "build",
    "check",
    "model",
    "token",
    "path",
    "value",
    "page",
    "index",
    "query",
    "result",
]
TEXT = 120


def request(spans: int) -> bytes:
    """Return one trace of `spans` spans, about 300 bytes each: a root with tool calls as children."""
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    _set(resource.resource.attributes, {"service.name": "bench"})
    scope = resource.scope_spans.add()
    scope.scope.name = "bench"
    trace_id, root_id, now = os.urandom(16), os.urandom(8), time.time_ns()
    for number in range(spans):
        span = scope.spans.add()
        span.trace_id, span.span_id = trace_id, os.urandom(8) if number else root_id
        if number:
            span.parent_span_id = root_id
        span.name, span.kind, span.status.code = "tool.search", 1, 1
        span.start_time_unix_nano, span.end_time_unix_nano = now + number, now + number + 10_000_000
        _set(
            span.attributes,
            {
                "openinference.span.kind": "TOOL",
                "tool.name": "search",
                "input.value": _text(),
                "output.value": _text(),
                "llm.model_name": "m-1",
            },
        )
    return message.SerializeToString()


def _set(attributes: object, values: dict[str, str]) -> None:
    for key, value in values.items():
        attribute = attributes.add()
        attribute.key, attribute.value.string_value = key, value


def _text() -> str:
    return " ".join(random.choices(WORDS, k=30))[:TEXT]


if __name__ == "__main__":
    target, count, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with target.open("wb") as file:
        for _ in range(count):
            body = request(size)
            file.write(len(body).to_bytes(8, "big") + body)
