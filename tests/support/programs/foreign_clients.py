"""Clients of the site with third-party libraries. Each runs in a separate process: foreign_clients.py NAME ARGUMENT…

Followers of a stream: `aiohttp-sse-client URL COUNT` and `httpx-sse URL COUNT`, in COUNT connections. The environment
variable COOKIE is sent along. They print each connection's IDs as JSON.

Senders of OTLP:

- `long_agent` has many steps and child agents. Its spans are sent in batches of 64 before their parents end.
- `langfuse_agent` is traced by Langfuse's SDK. LANGFUSE_BASE_URL and two keys set the destination.
- `instrumented_agent LIBRARY COMPRESSION` asks a local model provider, and `openllmetry` or `openinference` traces it.

OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS set the destination of the other senders.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import httpx
from aiohttp_sse_client.client import EventSource
from httpx_sse import aconnect_sse
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode, Tracer

# --- Senders of OTLP ---

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


def send_long_agent() -> None:
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


def send_langfuse_agent() -> None:
    from langfuse import get_client

    client = get_client()
    assert client.auth_check()
    with client.start_as_current_observation(name="traced", as_type="agent", input={"task": "do it"}) as root:
        with client.start_as_current_observation(name="turn", as_type="span"):
            asked = [{"role": "user", "content": "List the files"}]
            with client.start_as_current_observation(
                name="llm", as_type="generation", model="claude-haiku-4-5", input=asked
            ) as generation:
                usage = {"input": 10, "output": 3, "cache_read_input_tokens": 100}
                generation.update(output="I look.", usage_details=usage, cost_details={"total": 0.001})
            with client.start_as_current_observation(name="bash", as_type="tool", input={"command": "ls"}) as tool:
                tool.update(output="no such file", level="ERROR", status_message="exit 2")
        root.update(output="done")
    client.flush()
    client.shutdown()


#: Input and output tokens of every answer.
TOKENS = (120, 34)
CALLS = (("call_a", "get_weather", {"city": "Zürich"}), ("call_b", "get_time", {"tz": "Europe/Zurich"}))
TEXT = "Sunny, and 12 o'clock."


class ModelHandler(BaseHTTPRequestHandler):
    """Answers the first request with calls, and later requests with a text."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ModelHandler.count += 1
        is_first = len(document["messages"]) == 1
        answer = _anthropic(is_first) if self.path.endswith("/messages") else _openai(is_first)
        content = json.dumps(
            {**answer, "id": f"{answer['id']}{os.getpid()}_{ModelHandler.count}", "model": document["model"]}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def serve() -> str:
    """Start the server on a thread, and return its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), ModelHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def _anthropic(is_first: bool) -> dict[str, object]:
    calls = [{"type": "tool_use", "id": i, "name": name, "input": arguments} for i, name, arguments in CALLS]
    return {
        "id": "msg_",
        "type": "message",
        "role": "assistant",
        "stop_sequence": None,
        "content": calls if is_first else [{"type": "text", "text": TEXT}],
        "stop_reason": "tool_use" if is_first else "end_turn",
        "usage": {"input_tokens": TOKENS[0], "output_tokens": TOKENS[1]},
    }


def _openai(is_first: bool) -> dict[str, object]:
    calls = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, name, arguments in CALLS
    ]
    message = (
        {"role": "assistant", "content": None, "tool_calls": calls}
        if is_first
        else {"role": "assistant", "content": TEXT}
    )
    return {
        "id": "chatcmpl-",
        "object": "chat.completion",
        "created": 1_795_000_000,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if is_first else "stop"}],
        "usage": {"prompt_tokens": TOKENS[0], "completion_tokens": TOKENS[1], "total_tokens": sum(TOKENS)},
    }


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
    import anthropic

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
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        message = client.chat.completions.create(model="gpt-4o", messages=messages).choices[0].message
        messages.append(json.loads(message.model_dump_json(exclude_none=True)))
        for call in message.tool_calls or []:
            content = run_tool(tracer, call.id, call.function.name)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def send_instrumented_agent(library: str, compression: str) -> None:
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


# --- Followers of a stream ---


async def follow_with_aiohttp(session: aiohttp.ClientSession, url: str) -> None:
    """Follow a stream to its end. The library reconnects after a complete response; after a cut one, this function."""
    ids: list[object] = []
    last_id = ""
    while True:
        headers = {"Cookie": os.environ["COOKIE"]} | ({"Last-Event-ID": last_id} if last_id else {})
        try:
            async with EventSource(url, session=session, headers=headers) as source:
                async for event in source:
                    if event.type == "end":
                        print(json.dumps(ids), flush=True)
                        return
                    last_id = event.last_event_id
                    ids.append(int(last_id) if event.type in (None, "message") else event.type)
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(1)


async def all_with_aiohttp(url: str, count: str) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(follow_with_aiohttp(session, url) for _ in range(int(count))))


async def follow_with_httpx(client: httpx.AsyncClient, url: str) -> None:
    """Follow a stream to its end. Reconnects with the last ID, as the library's documentation shows."""
    ids: list[object] = []
    last_id, retry_s = "", 3.0
    while True:
        headers = {"Cookie": os.environ["COOKIE"]} | ({"Last-Event-ID": last_id} if last_id else {})
        try:
            async with aconnect_sse(client, "GET", url, headers=headers) as source:
                source.response.raise_for_status()
                async for event in source.aiter_sse():
                    last_id = event.id
                    retry_s = retry_s if event.retry is None else event.retry / 1000
                    if event.event == "end":
                        print(json.dumps(ids), flush=True)
                        return
                    # Includes events without data, which should not arrive.
                    ids.append(int(event.id) if event.event == "message" and event.data else event.event)
        except httpx.TransportError:
            pass
        await asyncio.sleep(retry_s)


async def all_with_httpx(url: str, count: str) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=httpx.Timeout(10, read=60), limits=limits) as client:
        await asyncio.gather(*(follow_with_httpx(client, url) for _ in range(int(count))))


SENDERS: dict[str, Callable[..., None]] = {
    "long_agent": send_long_agent,
    "langfuse_agent": send_langfuse_agent,
    "instrumented_agent": send_instrumented_agent,
}
FOLLOWERS = {"aiohttp-sse-client": all_with_aiohttp, "httpx-sse": all_with_httpx}


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name in FOLLOWERS:
        asyncio.run(FOLLOWERS[name](*arguments))
    else:
        SENDERS[name](*arguments)
