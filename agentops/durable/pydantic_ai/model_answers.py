"""Responses of pydantic-ai's models as answers for the site."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.usage import RequestUsage

from agentops.durable.answers import Answer, Call, Usage
from agentops.durable.pydantic_ai.tool_options import ToolOptions, options_of

#: Maximum characters of a provider's name.
MAX_PROVIDER = 63


def answer_of(response: ModelResponse, stored: Any, parameters: ModelRequestParameters, ids: Iterable[str]) -> Answer:
    """Return a response as an answer.

    `stored`: the response as JSON. `ids`: the ID of each tool call for the site. A call of an output tool is the text
    of the answer: the library processes it, and no tool is called.
    """
    tools = {tool.name: tool for tool in parameters.function_tools}
    outputs = {tool.name for tool in parameters.output_tools}
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    texts += [part.args_as_json_str() for part in response.tool_calls if part.tool_name in outputs]
    calls = [
        Call(id=call_id, name=part.tool_name, arguments=arguments_of(part), effect=_effect(tools.get(part.tool_name)))
        for part, call_id in zip(function_calls(response, parameters), ids, strict=True)
    ]
    details = response.provider_details or {}
    return Answer(
        text="\n\n".join(filter(None, texts)),
        thinking="\n\n".join(part.content for part in response.parts if isinstance(part, ThinkingPart)),
        calls=calls,
        model=response.model_name or "",
        provider=(response.provider_name or "")[:MAX_PROVIDER],
        usage=_usage(response.usage),
        finish_reason=response.finish_reason,
        tier=str(details.get("service_tier") or "")[:MAX_PROVIDER],
        raw=stored,
    )


def function_calls(response: ModelResponse, parameters: ModelRequestParameters) -> list[ToolCallPart]:
    """Return the calls of a response without calls of output tools."""
    outputs = {tool.name for tool in parameters.output_tools}
    return [part for part in response.tool_calls if part.tool_name not in outputs]


def arguments_of(part: ToolCallPart) -> dict[str, Any]:
    """Return the arguments of a call. Other text than a JSON object becomes the argument `input`."""
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return {"input": part.args_as_json_str()}


def _effect(tool: Any) -> Any:
    options = options_of(tool)
    if not isinstance(options, ToolOptions):
        return "once"
    return "read" if options.child else options.effect


def _usage(usage: RequestUsage) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_write_1h_tokens=usage.cache_write_1h_tokens,
        reasoning_tokens=usage.output_reasoning_tokens,
    )
