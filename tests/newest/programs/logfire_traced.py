"""Client libraries traced by Logfire: logfire_traced.py claude|gpt|responses."""
# /// script
# dependencies = ["logfire", "opentelemetry-exporter-otlp-proto-http", "anthropic", "openai"]
# ///

from __future__ import annotations

import sys

import logfire
import task
from opentelemetry import trace

logfire.configure(send_to_logfire=False, console=False)
logfire.instrument_anthropic()
logfire.instrument_openai()
provider = trace.get_tracer_provider()
with task.agent_span(provider):
    print(task.ASK[sys.argv[1]](task.tool_spans(provider)))
logfire.shutdown()
