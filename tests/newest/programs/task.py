"""What every program does: it asks a model a question, which the model answers after it has called two tools.

The programs import this module from their own directory, without the repository. Variables of the environment name the
model server (ANTHROPIC_BASE_URL, OPENAI_BASE_URL, …) and the receiver of spans (OTEL_EXPORTER_OTLP_…).
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

SYSTEM = "Answer in one sentence."
PROMPT = "What is the weather in Zürich, and what time is it there?"
CLAUDE, GPT, GEMINI = "claude-haiku-4-5", "gpt-4.1-mini", "gemini-2.5-flash"


def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return "sunny"


def get_time(zone: str) -> str:
    """Return the time in a time zone."""
    return "12:00"


TOOLS = {function.__name__: function for function in (get_weather, get_time)}
#: The name of each tool's parameter.
PARAMETERS = {"get_weather": "city", "get_time": "zone"}


class ToolSpans(Protocol):
    """Opens a span around a tool call, for libraries that trace model calls only."""

    def __call__(self, name: str, call_id: str, arguments: dict[str, Any]) -> AbstractContextManager[Any]: ...


def no_spans(name: str, call_id: str, arguments: dict[str, Any]) -> AbstractContextManager[Any]:
    return nullcontext()


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments."""
    parameter = PARAMETERS[name]
    return {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}


def ask_claude(spans: ToolSpans = no_spans) -> str:
    """Run the task with the client library of Anthropic, and return the answer."""
    import anthropic

    tools: Any = [
        {"name": name, "description": tool.__doc__, "input_schema": schema(name)} for name, tool in TOOLS.items()
    ]
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    with anthropic.Anthropic(max_retries=0) as client:
        while True:
            answer = client.messages.create(model=CLAUDE, max_tokens=500, system=SYSTEM, tools=tools, messages=messages)
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in answer.content if block.type == "text")
            results = []
            for call in calls:
                with spans(call.name, call.id, dict(call.input)):
                    result = TOOLS[call.name](**call.input)
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
            content = [block.model_dump(exclude_none=True) for block in answer.content]
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]


def ask_gpt(spans: ToolSpans = no_spans, client: Any = None) -> str:
    """Run the task with the client library of OpenAI and its Chat Completions API, and return the answer."""
    import openai

    tools: Any = [
        {"type": "function", "function": {"name": name, "description": tool.__doc__, "parameters": schema(name)}}
        for name, tool in TOOLS.items()
    ]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    with client or openai.OpenAI(max_retries=0) as library:
        while True:
            answer = library.chat.completions.create(model=GPT, messages=messages, tools=tools)
            message = answer.choices[0].message
            if not message.tool_calls:
                return str(message.content)
            messages.append(json.loads(message.model_dump_json(exclude_none=True)))
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                with spans(call.function.name, call.id, arguments):
                    result = TOOLS[call.function.name](**arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def ask_responses(spans: ToolSpans = no_spans, client: Any = None) -> str:
    """Run the task with the client library of OpenAI and its Responses API, and return the answer."""
    import openai

    tools: Any = [
        {"type": "function", "name": name, "description": tool.__doc__, "parameters": schema(name), "strict": False}
        for name, tool in TOOLS.items()
    ]
    items: list[Any] = [{"role": "user", "content": PROMPT}]
    with client or openai.OpenAI(max_retries=0) as library:
        while True:
            answer = library.responses.create(model=GPT, instructions=SYSTEM, input=items, tools=tools)
            items += [json.loads(item.model_dump_json(exclude_none=True)) for item in answer.output]
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return str(answer.output_text)
            for call in calls:
                arguments = json.loads(call.arguments)
                with spans(call.name, call.call_id, arguments):
                    result = TOOLS[call.name](**arguments)
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


ASK = {"claude": ask_claude, "gpt": ask_gpt, "responses": ask_responses}


def tracer_provider() -> Any:
    """Return a new global tracer provider that exports to the receiver of spans."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def agent_span(provider: Any) -> AbstractContextManager[Any]:
    """Open the span of an agent by the GenAI conventions."""
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "weather"}
    return provider.get_tracer("task").start_as_current_span("invoke_agent weather", attributes=attributes)


def tool_spans(provider: Any) -> ToolSpans:
    """Return a function that opens the span of a tool call by the GenAI conventions."""

    def opened(name: str, call_id: str, arguments: dict[str, Any]) -> AbstractContextManager[Any]:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.call.arguments": json.dumps(arguments, ensure_ascii=False),
            "gen_ai.tool.call.result": TOOLS[name](**arguments),
        }
        return provider.get_tracer("task").start_as_current_span(f"execute_tool {name}", attributes=attributes)

    return opened
