"""Client libraries traced by OpenInference: openinference_traced.py claude|gpt|responses."""
# /// script
# dependencies = [
#     "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "anthropic", "openai",
#     "openinference-instrumentation-anthropic", "openinference-instrumentation-openai",
# ]
# ///

from __future__ import annotations

import sys

import task
from openinference.instrumentation.anthropic import AnthropicInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor

provider = task.tracer_provider()
AnthropicInstrumentor().instrument(tracer_provider=provider)
OpenAIInstrumentor().instrument(tracer_provider=provider)
with task.agent_span(provider):
    print(task.ASK[sys.argv[1]](task.tool_spans(provider)))
provider.shutdown()
