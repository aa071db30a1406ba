"""An agent that third-party libraries trace: `instrumented_agent.py LIBRARY COMPRESSION`.

LIBRARY is `openllmetry` or `openinference`. The variables OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS
set the destination of the spans.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic
import openai
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.support.otlp.senders.model_server import serve

QUESTION = "What is the weather, and the time?"


def instrument(library: str, provider: TracerProvider) -> None:
    if library == "openllmetry":
        from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor
    else:
        from openinference.instrumentation.anthropic import AnthropicInstrumentor
        from openinference.instrumentation.openai import OpenAIInstrumentor
    AnthropicInstrumentor().instrument(tracer_provider=provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)


def run_tool(tracer: trace.Tracer, call_id: str, name: str) -> str:
    """Run a tool. The first works; the second fails."""
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id}
    with tracer.start_as_current_span(f"execute_tool {name}", attributes=attributes) as span:
        if name == "get_time":
            span.record_exception(ValueError("no clock"))
            span.set_status(trace.Status(trace.StatusCode.ERROR, "no clock"))
            return "no clock"
        span.set_attribute("gen_ai.tool.call.result", "sunny")
        return "sunny"


def ask_anthropic(tracer: trace.Tracer, url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        answer = client.messages.create(model="claude-haiku-4-5", max_tokens=99, messages=messages)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": run_tool(tracer, block.id, block.name)}
            for block in answer.content
            if block.type == "tool_use"
        ]
        content = [block.model_dump(exclude_none=True) for block in answer.content]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]


def ask_openai(tracer: trace.Tracer, url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        message = client.chat.completions.create(model="gpt-4o", messages=messages).choices[0].message
        messages.append(json.loads(message.model_dump_json(exclude_none=True)))
        for call in message.tool_calls or []:
            content = run_tool(tracer, call.id, call.function.name)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def main(library: str, compression: str) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "instrumented"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(compression=Compression(compression))))
    trace.set_tracer_provider(provider)
    instrument(library, provider)
    tracer, url = trace.get_tracer("agent"), serve()
    for name, ask in (("lead", ask_anthropic), ("other", ask_openai)):
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            "gen_ai.conversation.id": library,
        }
        with tracer.start_as_current_span(f"invoke_agent {name}", attributes=attributes):
            ask(tracer, url)
    provider.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
