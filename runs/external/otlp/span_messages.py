"""Reads the messages in the span of a model call, which each vocabulary writes differently.

The results are JSON values in the forms that `runs.external.importers.observed_messages` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentops.base.http import strict_json
from runs.external.otlp.attribute_names import INPUT, INSTRUCTIONS, OUTPUT, first
from runs.external.otlp.wire import JSON_LIMITS

#: Attributes whose names are paths: `llm.input_messages.0.message.content`, `gen_ai.prompt.0.tool_calls.1.name`.
_FLAT_INPUT = ("llm.input_messages", "gen_ai.prompt")
#: The same for answers: of OpenInference, and of older versions of OpenLLMetry.
_FLAT_ITEMS, _FLATCHOICES = ("llm.output_messages",), ("gen_ai.completion",)
_INDEX = re.compile(r"[0-9]{1,4}", re.ASCII)
#: Messages from this index on are ignored.
_MAX_INDEX = 5_000
#: Events of a span that are messages: `gen_ai.user.message`, and `gen_ai.choice`.
_MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
CHOICE, _TOOL_MESSAGE = "gen_ai.choice", "gen_ai.tool.message"
#: Events that only carry attributes of their span.
_DETAILS = ("gen_ai.client.inference.operation.details", "gen_ai.content.prompt", "gen_ai.content.completion")
Attributes = Mapping[str, Any]
Events = Iterable[tuple[str, Attributes]]


def with_details(attributes: Attributes, events: Events) -> dict[str, Any]:
    """Return the attributes of a span, including the attributes that it has in events: see `_DETAILS`."""
    all_attributes = dict(attributes)
    for name, details in events:
        if name in _DETAILS:
            all_attributes = {**details, **all_attributes}
    return all_attributes


def input_of(attributes: Attributes, events: Events) -> Any:
    """Return the input of a model: a list of messages, or another JSON value; None if it is unknown."""
    flat = _from_flat_attributes(attributes, _FLAT_INPUT)
    sent = [message for name, message in _message_events(attributes, events) if name != CHOICE]
    value = flat or sent or decoded(first(attributes, INPUT))
    instructions = decoded(first(attributes, INSTRUCTIONS))
    if instructions and isinstance(value, list | None):
        parts = instructions if isinstance(instructions, list) else [{"type": "text", "content": instructions}]
        return [{"role": "system", "parts": parts}, *(value or [])]
    return value


def output_of(attributes: Attributes, events: Events) -> Any:
    """Return the output of a model, in the forms of `input_of`."""
    items = _from_flat_attributes(attributes, _FLAT_ITEMS)
    flat = items[:1] if _has_choices(attributes) else items
    flat = flat or _from_flat_attributes(attributes, _FLATCHOICES)[:1]
    choices = [message for name, message in _message_events(attributes, events) if name == CHOICE]
    return flat or choices[:1] or _vercel_answer(attributes) or decoded(first(attributes, OUTPUT))


def _has_choices(attributes: Attributes) -> bool:
    """Return whether the output messages of OpenInference are several answers, of which the program chooses one.

    Without them, they are the items of one answer, as in OpenAI's Responses API.
    """
    response = attributes.get("output.value")
    value = decoded(response) if isinstance(response, str) and '"choices"' in response else None
    return isinstance(value, dict) and isinstance(value.get("choices"), list) and len(value["choices"]) > 1


def called_with(events: Events) -> tuple[Any, Any]:
    """Return the arguments and the result of a tool call from the events of its span; None if it has no such event."""
    by_name = {name: values for name, values in events if name in (_TOOL_MESSAGE, CHOICE)}
    arguments = by_name.get(_TOOL_MESSAGE, {}).get("content")
    return decoded(arguments), decoded(by_name.get(CHOICE, {}).get("message"))


def decoded(value: Any) -> Any:
    """Parse a JSON text. Other values are returned unchanged."""
    if not isinstance(value, str) or value[:1] not in ("{", "[", '"'):
        return value
    try:
        return strict_json.parse(value, JSON_LIMITS)
    except strict_json.NotJson:
        return value


# --- Flattened attributes ---


def _from_flat_attributes(attributes: Attributes, prefixes: Iterable[str]) -> list[dict[str, Any]]:
    """Return the messages in attributes such as `llm.input_messages.0.message.content`.

    They are of the first prefix that has messages; empty if none has.
    """
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
    """Set a value at a path of nested objects. Does nothing if the path leads through another value."""
    for step in path[:-1]:
        inner = root.setdefault(step, {})
        if not isinstance(inner, dict):
            return
        root = inner
    root[path[-1]] = value


def _items(value: Any) -> list[Any]:
    """Return the members of an object whose names are indexes, in index order; empty for any other value."""
    if not isinstance(value, dict):
        return []
    indexed = sorted((int(name), item) for name, item in value.items() if _INDEX.fullmatch(name))
    return [item for index, item in indexed if index < _MAX_INDEX]


def _flat_message(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message that was flattened, as a chat message."""
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
    """Return a content block that was flattened; None for a block without content. An unknown one stays as it is."""
    content = block.get("message_content") if isinstance(block, dict) else None
    content = content if isinstance(content, dict) else {}
    if content.get("type") == "reasoning":
        return {"type": "thinking", "thinking": content["text"]} if content.get("text") else None
    if isinstance(content.get("text"), str):
        return {"type": "text", "text": content["text"]}
    if content.get("type") == "tool_use" and "tool_call" in block:
        call = _flat_call(block, 0)
        return {"type": "tool_use", "id": call["id"], **call["function"]}
    image = content.get("image")
    image = image.get("image") if isinstance(image, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    return {"type": "image_url", "image_url": {"url": url}} if isinstance(url, str) else content or None


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


# --- Events ---


def _message_events(attributes: Attributes, events: Events) -> list[tuple[str, dict[str, Any]]]:
    """Return the messages that are events of a span, or are listed in its attribute `events`, with their names."""
    named = [(name, dict(values)) for name, values in events]
    listed = decoded(first(attributes, ("events", "all_messages_events")))
    if isinstance(listed, list):
        named += [(str(item.get("event.name")), item) for item in listed if isinstance(item, dict)]
    messages = [(name, values) for name, values in named if name == CHOICE or _MESSAGE_EVENT.match(name)]
    return [(name, _message_of(name, values)) for name, values in messages]


def _message_of(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the message in an event of a span, as a chat message. Strands has only the content of an answer."""
    inner = decoded(values.get("message"))
    values = {**values, **(inner if isinstance(inner, dict) else {"content": inner} if inner else {})}
    role = "assistant" if name == CHOICE else name.split(".")[1]
    message: dict[str, Any] = {"role": role, "content": decoded(values.get("content"))}
    calls = decoded(values.get("tool_calls"))
    if isinstance(calls, list):
        message["tool_calls"] = [_flat_call(call, index) for index, call in enumerate(calls)]
    if role == "tool" and isinstance(values.get("id"), str):
        message["tool_call_id"] = values["id"]
    return message


def _vercel_answer(attributes: Attributes) -> list[dict[str, Any]]:
    """Return the answer in the attributes of Vercel's AI SDK, as a list of one message; empty without one."""
    text, calls = attributes.get("ai.response.text"), decoded(attributes.get("ai.response.toolCalls"))
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if not isinstance(text, str) and not calls:
        return []
    requested = [
        call_of(call.get("toolCallId"), call.get("toolName"), call.get("input", call.get("args")), index)
        for index, call in enumerate(calls)
    ]
    return [{"role": "assistant", "content": text or None, **({"tool_calls": requested} if requested else {})}]
