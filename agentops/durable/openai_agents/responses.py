"""Responses of the SDK's models: as answers that the site shows, and as JSON that the journal stores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents import ModelResponse
from agents.usage import Usage as SdkUsage
from agents.usage import deserialize_usage
from openai.types.responses import Response, ResponseOutputItem
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from agentops.durable.answers import Answer, Call, FinishReason, Usage

_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
#: Types of output items that have a separate place in an answer, or nothing to show.
_MESSAGE, _REASONING, _FUNCTION_CALL = "message", "reasoning", "function_call"
#: Types of output items with a call that the provider executes, and their member with the result.
_RESULTS = {
    "web_search_call": "action",
    "file_search_call": "results",
    "code_interpreter_call": "outputs",
    "image_generation_call": "status",
    "mcp_call": "output",
    "mcp_list_tools": "tools",
    "tool_search_call": "status",
}
#: Members of such items that are no arguments of the call.
_META = frozenset({"id", "type", "status", "call_id", "created_by", "result", "error", "approval_request_id"})


@dataclass(frozen=True)
class HostedCall:
    """A call of a tool that the provider has executed within its response."""

    call: Call
    result: Any


@dataclass(frozen=True)
class Shown:
    """What people see of a response."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[Call] = ()
    hosted: Sequence[HostedCall] = ()
    finish_reason: FinishReason | None = None


@dataclass
class _Parts:
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    hosted: list[HostedCall] = field(default_factory=list)
    is_cut: bool = False
    is_refused: bool = False


def dump(response: ModelResponse) -> dict[str, Any]:
    """Return a response as JSON."""
    return {
        "output": [_as_json(item) for item in response.output],
        "usage": to_jsonable_python(TypeAdapter(SdkUsage).dump_python(response.usage, mode="json")),
        "response_id": response.response_id,
        "request_id": response.request_id,
    }


def load(stored: Mapping[str, Any]) -> ModelResponse:
    """Return the response that `dump` has returned as JSON."""
    response = ModelResponse(
        output=[],
        usage=deserialize_usage(stored["usage"]),
        response_id=stored["response_id"],
        request_id=stored["request_id"],
    )
    response.output = [_item(item) for item in stored["output"]]
    return response


def of_stream(response: Response, items: Sequence[Any]) -> ModelResponse:
    """Return the response at the end of a stream. `items`: the output items of the stream, if the end has none."""
    used = response.usage
    usage = SdkUsage()
    if used is not None:
        usage = SdkUsage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    converted = ModelResponse(output=[], usage=usage, response_id=response.id)
    converted.output = list(response.output or items)
    return converted


def shown(response: ModelResponse) -> Shown:
    """Return what people see of a response."""
    parts = _Parts()
    for item in response.output:
        _add(parts, _as_json(item))
    reason: FinishReason = "tool_call" if parts.calls else "stop"
    if parts.is_refused:
        reason = "content_filter"
    elif parts.is_cut:
        reason = "length"
    return Shown("".join(parts.texts), "\n\n".join(parts.thoughts), parts.calls, parts.hosted, reason)


def answer(response: ModelResponse, *, model: str, provider: str, calls: Sequence[Call]) -> Answer:
    """Return a response as an answer. `calls`: its calls, with their effects."""
    view = shown(response)
    hosted = [hosted.call for hosted in view.hosted]
    return Answer(
        text=view.text,
        thinking=view.thinking,
        calls=[*hosted, *calls],
        model=model,
        provider=provider,
        usage=_usage(response.usage),
        finish_reason=view.finish_reason,
        raw=dump(response),
    )


def parsed_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call as an object. Other values become its member `input`."""
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"input": value}


def _as_json(item: Any) -> dict[str, Any]:
    if isinstance(item, BaseModel):
        return item.model_dump(mode="json", exclude_unset=True, warnings=False)
    value: dict[str, Any] = to_jsonable_python(item)
    return value


def _item(stored: Mapping[str, Any]) -> Any:
    """Return the output item of a JSON object; the object itself if its form is unknown."""
    try:
        return _ITEM.validate_python(stored)
    except ValidationError:
        return dict(stored)


def _add(parts: _Parts, item: Mapping[str, Any]) -> None:
    """Add an output item to what people see. Items of unknown types are calls of hosted tools if they have an ID."""
    kind = str(item.get("type") or "")
    if kind == _MESSAGE:
        _add_message(parts, item)
    elif kind == _REASONING:
        parts.thoughts += _texts(item.get("summary")) or _texts(item.get("content"))
    elif kind == _FUNCTION_CALL:
        arguments = parsed_arguments(item.get("arguments") or "")
        parts.calls.append(Call(id=item["call_id"], name=item["name"], arguments=arguments))
    elif kind.endswith("_call") and item.get("call_id") and kind not in _RESULTS:
        # A call that this process executes: its output is an input item of the next request.
        parts.calls.append(Call(id=item["call_id"], name=_name(item), arguments=_arguments(item, None)))
    elif kind in _RESULTS and item.get("id"):
        parts.hosted.append(_hosted(item, _RESULTS[kind]))


def _add_message(parts: _Parts, item: Mapping[str, Any]) -> None:
    parts.is_cut |= item.get("status") == "incomplete"
    for content in item.get("content") or ():
        if content.get("type") == "refusal":
            parts.is_refused = True
            parts.texts.append(content.get("refusal") or "")
        else:
            parts.texts.append(content.get("text") or "")


def _texts(contents: Any) -> list[str]:
    return [content["text"] for content in contents or () if content.get("text")]


def _hosted(item: Mapping[str, Any], result: str) -> HostedCall:
    call = Call(id=item["id"], name=_name(item), arguments=_arguments(item, result), effect="read")
    outcome = {name: item[name] for name in (result, "error", "status") if item.get(name) is not None}
    return HostedCall(call, outcome.get(result) if len(outcome) == 1 else outcome)


def _name(item: Mapping[str, Any]) -> str:
    return str(item.get("name") or str(item["type"]).removesuffix("_call"))


def _arguments(item: Mapping[str, Any], result: str | None) -> dict[str, Any]:
    members = dict(_without(item, result))
    if isinstance(members.get("arguments"), str):
        members |= parsed_arguments(members.pop("arguments"))
    return members


def _without(item: Mapping[str, Any], result: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the members of an item that are arguments of its call."""
    for name, value in item.items():
        if value is not None and name not in _META and (name != result or name == "action") and name != "name":
            yield name, value


def _usage(used: SdkUsage) -> Usage:
    details, outputs = used.input_tokens_details, used.output_tokens_details
    return Usage(
        input_tokens=used.input_tokens or 0,
        output_tokens=used.output_tokens or 0,
        cache_read_tokens=getattr(details, "cached_tokens", 0) or 0,
        cache_write_tokens=getattr(details, "cache_write_tokens", 0) or 0,
        reasoning_tokens=getattr(outputs, "reasoning_tokens", 0) or 0,
    )
