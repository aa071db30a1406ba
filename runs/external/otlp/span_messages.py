"""The messages of a model call's span, which each vocabulary writes differently, as lists of JSON messages.

The messages have the forms that `runs.external.importers.reading.observed_messages` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentops.base.http import strict_json
from runs.external.otlp.attribute_names import INPUT, INSTRUCTIONS, OUTPUT, first
from runs.external.otlp.wire import JSON_LIMITS

#: Attributes whose names are paths: `llm.input_messages.0.message.content`, `gen_ai.prompt.0.tool_calls.1.name`.
_FLAT_INPUT, _FLAT_OUTPUT = ("llm.input_messages", "gen_ai.prompt"), ("llm.output_messages", "gen_ai.completion")
_INDEX = re.compile(r"[0-9]{1,4}", re.ASCII)
_MAX_INDEX = 5_000
#: Events of a span that are messages: `gen_ai.user.message`, and `gen_ai.choice`.
_MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_CHOICE = "gen_ai.choice"
#: Events whose attributes belong to their span.
_DETAILS = ("gen_ai.client.inference.operation.details", "gen_ai.content.prompt", "gen_ai.content.completion")
Attributes = Mapping[str, Any]
Events = Iterable[tuple[str, Attributes]]


def with_details(attributes: Attributes, events: Events) -> dict[str, Any]:
    """Return the attributes of a span, with the attributes that its events have on its behalf."""
    all_attributes = dict(attributes)
    for name, details in events:
        if name in _DETAILS:
            all_attributes = {**details, **all_attributes}
    return all_attributes


def input_of(attributes: Attributes, events: Events) -> Any:
    """Return the input of a model: a list of messages, or another JSON value; None if unknown."""
    flat = _flattened(attributes, _FLAT_INPUT)
    sent = [message for name, message in _message_events(attributes, events) if name != _CHOICE]
    value = flat or sent or decoded(first(attributes, INPUT))
    instructions = decoded(first(attributes, INSTRUCTIONS))
    if instructions and isinstance(value, list | None):
        parts = instructions if isinstance(instructions, list) else [{"type": "text", "content": instructions}]
        return [{"role": "system", "parts": parts}, *(value or [])]
    return value


def output_of(attributes: Attributes, events: Events) -> Any:
    """Return the output of a model, in the forms of `input_of`."""
    flat = _flattened(attributes, _FLAT_OUTPUT)
    choices = [message for name, message in _message_events(attributes, events) if name == _CHOICE]
    return flat[:1] or choices[:1] or _vercel_answer(attributes) or decoded(first(attributes, OUTPUT))


def decoded(value: Any) -> Any:
    """Parse a JSON text. Other values are returned unchanged."""
    if not isinstance(value, str) or value[:1] not in ("{", "[", '"'):
        return value
    try:
        return strict_json.parse(value, JSON_LIMITS)
    except strict_json.NotJson:
        return value


# --- Flattened attributes -------------------------------------------------------------------------------------------


def _flattened(attributes: Attributes, prefixes: Iterable[str]) -> list[dict[str, Any]]:
    for prefix in prefixes:
        root: dict[str, Any] = {}
        for name, value in attributes.items():
            if name.startswith(f"{prefix}."):
                _put(root, name[len(prefix) + 1 :].split("."), value)
        messages = [_flat_message(message) for message in _items(root) if isinstance(message, dict)]
        if messages:
            return messages
    return []


def _put(root: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        inner = root.setdefault(step, {})
        if not isinstance(inner, dict):
            return
        root = inner
    root[path[-1]] = value


def _items(value: Any) -> list[Any]:
    """Return the members of an object whose names are indexes, in index order."""
    if not isinstance(value, dict):
        return []
    indexed = sorted((int(name), item) for name, item in value.items() if _INDEX.fullmatch(name)) if value else []
    return [item for index, item in indexed if index < _MAX_INDEX]


def _flat_message(item: dict[str, Any]) -> dict[str, Any]:
    message = item.get("message", item)
    message = message if isinstance(message, dict) else {}
    content = decoded(message.get("content"))
    blocks = [_flat_block(block) for block in _items(message.get("contents"))]
    plain: dict[str, Any] = {
        "role": message.get("role", "user"),
        "content": [block for block in blocks if block] or content,
    }
    calls = [_flat_call(call, index) for index, call in enumerate(_items(message.get("tool_calls")))]
    plain |= {"tool_calls": calls} if calls else {}
    plain |= {name: message[name] for name in ("tool_call_id", "name") if isinstance(message.get(name), str)}
    return plain


def _flat_block(block: Any) -> Any:
    content = block.get("message_content") if isinstance(block, dict) else None
    content = content if isinstance(content, dict) else {}
    if content.get("type") == "reasoning":
        return {"type": "thinking", "thinking": str(content.get("text") or "")}
    if isinstance(content.get("text"), str):
        return {"type": "text", "text": content["text"]}
    image = content.get("image")
    url = (
        image.get("image", {}).get("url") if isinstance(image, dict) and isinstance(image.get("image"), dict) else None
    )
    return {"type": "image_url", "image_url": {"url": url}} if isinstance(url, str) else None


def _flat_call(item: Any, index: int) -> dict[str, Any]:
    call = item.get("tool_call", item) if isinstance(item, dict) else {}
    call = call if isinstance(call, dict) else {}
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    return call_of(call.get("id"), function.get("name"), function.get("arguments"), index)


def call_of(call_id: Any, name: Any, arguments: Any, index: int = 0) -> dict[str, Any]:
    """Return a requested call in the form of a chat message.

    A call without an ID gets one from its index in the answer.
    """
    arguments = decoded(arguments)
    function = {"name": name if isinstance(name, str) and name else "tool", "arguments": arguments}
    return {"id": call_id if isinstance(call_id, str) and call_id else f"call-{index}", "function": function}


# --- Events ---------------------------------------------------------------------------------------------------------


def _message_events(attributes: Attributes, events: Events) -> list[tuple[str, dict[str, Any]]]:
    """Return the messages that are events of the span, or are listed in its attribute `events`."""
    found = [(name, dict(values)) for name, values in events]
    listed = decoded(first(attributes, ("events", "all_messages_events")))
    if isinstance(listed, list):
        found += [(str(item.get("event.name")), item) for item in listed if isinstance(item, dict)]
    return [
        (name, _message_of(name, values)) for name, values in found if name == _CHOICE or _MESSAGE_EVENT.match(name)
    ]


def _message_of(name: str, values: dict[str, Any]) -> dict[str, Any]:
    inner = decoded(values.get("message"))
    values = {**values, **inner} if isinstance(inner, dict) else values
    role = "assistant" if name == _CHOICE else name.split(".")[1]
    message: dict[str, Any] = {"role": role, "content": decoded(values.get("content"))}
    calls = decoded(values.get("tool_calls"))
    if isinstance(calls, list):
        message["tool_calls"] = [_flat_call(call, index) for index, call in enumerate(calls)]
    if role == "tool" and isinstance(values.get("id"), str):
        message["tool_call_id"] = values["id"]
    return message


def _vercel_answer(attributes: Attributes) -> list[dict[str, Any]]:
    text, calls = attributes.get("ai.response.text"), decoded(attributes.get("ai.response.toolCalls"))
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if not isinstance(text, str) and not calls:
        return []
    requested = [
        call_of(call.get("toolCallId"), call.get("toolName"), call.get("input", call.get("args")), index)
        for index, call in enumerate(calls)
    ]
    return [{"role": "assistant", "content": text or None, **({"tool_calls": requested} if requested else {})}]
