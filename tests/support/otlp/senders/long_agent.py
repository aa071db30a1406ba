"""An agent with many steps and child agents. Its spans are sent in batches of 64 before their parents end."""

from __future__ import annotations

import time

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode, Tracer

STEPS, EVERY_FAILURE, EVERY_CHILD = 110, 9, 25


def step(tracer: Tracer, number: int) -> None:
    asked = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "claude-haiku-4-5"}
    tokens = {"gen_ai.usage.input_tokens": 100 + number, "gen_ai.usage.output_tokens": 7}
    with tracer.start_as_current_span("chat", attributes=asked | tokens):
        pass
    ran = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bash", "gen_ai.tool.call.id": f"call_{number}"}
    with tracer.start_as_current_span("execute_tool bash", attributes=ran) as span:
        if number % EVERY_FAILURE == 0:
            span.set_status(Status(StatusCode.ERROR, "exit 1"))
    if number % EVERY_CHILD == 0:
        child = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": f"child-{number}"}
        read = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "read"}
        with (
            tracer.start_as_current_span("invoke_agent", attributes=child),
            tracer.start_as_current_span("execute_tool", attributes=read),
        ):
            pass


def main() -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "long"}))
    exporter = OTLPSpanExporter(compression=Compression.Gzip)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=64, schedule_delay_millis=200))
    tracer = provider.get_tracer("long")
    root = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "long", "gen_ai.conversation.id": "conv-ü"}
    with tracer.start_as_current_span("invoke_agent long", attributes=root):
        for number in range(STEPS):
            step(tracer, number)
            time.sleep(0.003)
    provider.shutdown()


if __name__ == "__main__":
    main()
