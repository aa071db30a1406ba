"""Client libraries traced by OpenLLMetry: openllmetry_traced.py claude|gpt|responses."""
# /// script
# dependencies = [
#     "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "anthropic", "openai",
#     "opentelemetry-instrumentation-anthropic", "opentelemetry-instrumentation-openai",
# ]
# ///

from __future__ import annotations

import sys

import task
from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor
from opentelemetry.instrumentation.openai import OpenAIInstrumentor

provider = task.tracer_provider()
AnthropicInstrumentor().instrument(tracer_provider=provider)
OpenAIInstrumentor().instrument(tracer_provider=provider)
with task.agent_span(provider):
    print(task.ASK[sys.argv[1]](task.tool_spans(provider)))
provider.shutdown()
