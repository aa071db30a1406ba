"""A model of the OpenAI Agents SDK that answers from a script, and output items for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import Model, ModelResponse, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

#: Returns the output items of an answer to these input items.
Script = Callable[[list[Any]], Any]
INPUT, CACHED, OUTPUT, REASONING = 50, 20, 10, 4


class ScriptedSdkModel(Model):
    """Answers by a script. `inputs` are the input items of each call."""

    def __init__(self, script: Script, *, model: str = "gpt-5", provider: str = "openai") -> None:
        self.script = script
        self.model = model
        self.provider = provider
        self.inputs: list[list[Any]] = []

    def _output(self, given: Any) -> list[Any]:
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        self.inputs.append(items)
        output = self.script(items)
        return list(output) if isinstance(output, list | tuple) else [output]

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002 - the name in the SDK
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        usage = Usage(
            requests=1,
            input_tokens=INPUT,
            output_tokens=OUTPUT,
            total_tokens=INPUT + OUTPUT,
            input_tokens_details=_cached(),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=REASONING),
        )
        return ModelResponse(output=self._output(input), usage=usage, response_id=f"resp_{len(self.inputs)}")

    async def stream_response(  # type: ignore[override]
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002 - the name in the SDK
        *args: Any,
        **options: Any,
    ) -> AsyncIterator[Any]:
        output = self._output(input)
        for item in output:
            for content in getattr(item, "content", None) or ():
                for word in getattr(content, "text", "").split(" "):
                    yield ResponseTextDeltaEvent(
                        type="response.output_text.delta",
                        delta=f"{word} ",
                        content_index=0,
                        item_id="m",
                        output_index=0,
                        sequence_number=0,
                        logprobs=[],
                    )
        usage = ResponseUsage(
            input_tokens=INPUT,
            output_tokens=OUTPUT,
            total_tokens=INPUT + OUTPUT,
            input_tokens_details=_cached(),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=REASONING),
        )
        response = Response(
            id=f"resp_{len(self.inputs)}",
            created_at=0,
            model=self.model,
            object="response",
            output=output,
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
            usage=usage,
            status="completed",
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=1)


def _cached() -> InputTokensDetails:
    return InputTokensDetails.model_validate({"cached_tokens": CACHED, "cache_write_tokens": 0})


def call(call_id: str, name: str, **arguments: Any) -> ResponseFunctionToolCall:
    """Return an output item that requests a tool call."""
    return ResponseFunctionToolCall(
        type="function_call", call_id=call_id, name=name, arguments=json.dumps(arguments), status="completed"
    )


def say(text: str, *, status: Any = "completed") -> ResponseOutputMessage:
    """Return an output item with a text. `status`: `incomplete` if it was cut."""
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="m1", type="message", role="assistant", content=[content], status=status)


def refuse(text: str) -> ResponseOutputMessage:
    """Return an output item with a refusal."""
    content = ResponseOutputRefusal(type="refusal", refusal=text)
    return ResponseOutputMessage(id="m1", type="message", role="assistant", content=[content], status="completed")


def outputs(items: list[Any]) -> dict[str, Any]:
    """Return the outputs of calls in input items, by the ID of the call."""
    return {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}


def user_texts(items: list[Any]) -> list[str]:
    """Return the texts of people in input items."""
    return [item["content"] for item in items if item.get("role") == "user"]
