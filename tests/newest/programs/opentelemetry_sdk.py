"""The OpenTelemetry SDK, with the spans that the client library of Anthropic emits itself."""
# /// script
# dependencies = ["opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "anthropic"]
# ///

from __future__ import annotations

import task

provider = task.tracer_provider()
with task.agent_span(provider):
    print(task.ask_claude(task.tool_spans(provider)))
provider.shutdown()
