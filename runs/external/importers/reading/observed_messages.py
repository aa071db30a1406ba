"""Reads the request and the answer of a traced model call, in the forms of several providers and tracing libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from pydantic_ai.messages import ToolCallPart

from agentops.base.http.strict_json import NotJson
from runs.external import contents
from runs.external.importers.base import ImportRefused, read_json
from runs.external.importers.reading.chat_messages import is_chat_message, read_chat_message
from runs.external.importers.reading.conversation import ChatMessage
from runs.external.importers.reading.json_place import MAX_NAME, JsonPlace
from runs.providers.messages import canonical

#: OpenInference's attributes of a message: `llm.input_messages.0.message.role`.
_ATTRIBUTE = re.compile(r"llm\.input_messages\.(\d+)\.message\.(role|content|name|tool_call_id)")
_ROLES = {"system": "system", "developer": "system", "assistant": "assistant", "model": "assistant", "tool": "tool"}
#: Types of LangChain's messages.
_LANGCHAIN = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
#: Open calls that are searched for the call of a result without an ID. A file may have very many of both.
MAX_SEARCHED = 1000
#: Types of items of the Responses API that are not messages.
_ITEMS = frozenset(
    {"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"}
)


def sent_messages(place: JsonPlace, attributes: Mapping[str, Any]) -> list[ChatMessage]:
    """Return the messages of a request."""
    place = _opened(place, _is_request)
    value = place.value
    if isinstance(value, dict) and isinstance(value.get("contents"), list):
        return [*_gemini_system(value), *_gemini(value["contents"])]
    items = value.get("messages") if isinstance(value, dict) else value
    if isinstance(items, list) and items and all(isinstance(item, dict) for item in items):
        base = place.at("messages") if isinstance(value, dict) else place
        return [message for item in base.items() for message in _observed(item)]
    from_attributes = _from_attributes(attributes)
    if from_attributes:
        return from_attributes
    arguments = value.get("args") if isinstance(value, dict) else None
    if isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], str):
        value = arguments[0]
    if isinstance(value, dict) and isinstance(value.get("prompt"), str):
        value = value["prompt"]
    return [] if value is None else [ChatMessage(role="user", content=_text(value))]


def asked_text(place: JsonPlace, attributes: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the first line of a request's last user message; empty for an unknown form or without a user message.

    `attributes`: the attributes of the span, which can also have the messages.
    """
    place = _opened(_unquoted(place), _is_request)
    is_text = isinstance(place.value, str) and not place.value.lstrip().startswith(("{", "["))
    if not is_text and not _is_request(place.value) and not _from_attributes(attributes):
        return ""
    try:
        messages = sent_messages(place, attributes)
    except ImportRefused:
        return ""
    texts = [contents.text_content(message.content).strip() for message in messages if message.role == "user"]
    # A request in an unknown form is one message with its JSON.
    asked = [text for text in texts if text and text[0] not in "{[" and not contents.is_of_program(text)]
    return asked[-1].partition("\n")[0] if asked else ""


def answered_message(place: JsonPlace, call_prefix: str) -> ChatMessage:
    """Return the answer of a response. A call without an ID gets an ID with the prefix `call_prefix`."""
    value = place.value
    messages = list(_answers(_opened(place, _is_answer)))
    if not messages:
        return ChatMessage(role="assistant", content=None if value is None else _text(value))
    return _joined(messages, call_prefix)


def _unquoted(place: JsonPlace) -> JsonPlace:
    """Return the text within a JSON text: some exports have the input of a trace as JSON of JSON."""
    if not isinstance(place.value, str) or not place.value.startswith('"'):
        return place
    try:
        value = read_json(place.value.encode(errors="replace"))
    except NotJson:
        return place
    return JsonPlace(place.file, value, place.path, place.line)


def _opened(place: JsonPlace, is_known: Callable[[Any], bool]) -> JsonPlace:
    """Return the JSON value of a text if it has a known form. Some exports have requests and answers as texts."""
    if not isinstance(place.value, str) or not place.value.lstrip().startswith(("{", "[")):
        return place
    try:
        value = read_json(place.value.encode(errors="replace"))
    except NotJson:
        return place
    return JsonPlace(place.file, value, place.path, place.line) if is_known(value) else place


def _is_request(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) and ("role" in item or "type" in item) for item in value)
    return isinstance(value, dict) and not {"messages", "contents", "prompt", "args"}.isdisjoint(value)


def _is_answer(value: Any) -> bool:
    if isinstance(value, list):
        return _is_request(value)
    return isinstance(value, dict) and not {"role", "choices", "output"}.isdisjoint(value)


def is_response_item(value: object) -> bool:
    """Return whether a value is an item of the Responses API."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        return False
    return value["type"] in _ITEMS or (value["type"] == "message" and isinstance(value.get("role"), str))


def is_answer_item(value: object) -> bool:
    """Return whether a value is an item of an answer."""
    if not isinstance(value, Mapping) or not is_response_item(value):
        return False
    return value.get("role") == "assistant" or value["type"] in ("function_call", "custom_tool_call", "reasoning")


def item_messages(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield the messages of an item. Raises `ImportRefused`."""
    return _message(place)


def answer_of_items(places: Sequence[JsonPlace]) -> ChatMessage:
    """Return the answer that some items of the Responses API form. Raises `ImportRefused`."""
    return _joined([message for place in places for message in _message(place)], "")


def _joined(messages: Sequence[ChatMessage], call_prefix: str) -> ChatMessage:
    parts = [part for one in messages for part in (one.content if isinstance(one.content, list) else [one.content])]
    calls = [call for one in messages for call in one.calls]
    return ChatMessage(
        role="assistant",
        content=[part for part in parts if part],
        thinking="\n".join(one.thinking for one in messages if one.thinking),
        calls=[replace(call, tool_call_id=call.tool_call_id or f"{call_prefix}:{i}") for i, call in enumerate(calls)],
    )


def instructions_of(place: JsonPlace) -> list[ChatMessage]:
    """Return the system message that a response of OpenAI's Responses API repeats."""
    text = place.value.get("instructions") if isinstance(place.value, dict) else None
    return [ChatMessage(role="system", content=text)] if isinstance(text, str) and text else []


def with_call_id(message: ChatMessage, open_calls: Mapping[str, ToolCallPart]) -> ChatMessage:
    """Return a tool result that has a call ID: the given one, or else the ID of its tool's open call."""
    if message.role != "tool" or any(message.call_ids):
        return message
    return replace(message, call_ids=[open_call(message.tool_name, open_calls)])


def open_call(tool_name: str, open_calls: Mapping[str, ToolCallPart]) -> str:
    """Return the ID of the first open call of a tool; empty if none of the oldest 1,000 open calls matches."""
    oldest = islice(open_calls.items(), MAX_SEARCHED)
    return next((call_id for call_id, call in oldest if call.tool_name == tool_name), "")


def _answers(place: JsonPlace) -> Iterator[ChatMessage]:
    value = place.value
    if isinstance(value, list):
        for item in place.items():
            yield from _observed(item) if isinstance(item.value, dict) else ()
    elif isinstance(value, dict):
        if isinstance(value.get("choices"), list):
            for choice in list(place.at("choices").items())[:1]:
                yield from _observed(choice.at("message"))
        elif isinstance(value.get("output"), list):
            for item in place.at("output").items():
                yield from _observed(item)
        elif isinstance(value.get("content"), dict):
            yield from _gemini([value["content"]])
        elif "role" in value or value.get("type") in _LANGCHAIN:
            yield from _observed(place)


def _observed(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield the messages of an item. Traced values can have any form: an unknown form becomes a text."""
    try:
        messages = list(_message(_as_chat(place)))
    except ImportRefused:
        value = place.value if isinstance(place.value, dict) else {}
        role = _ROLES.get(str(value.get("role")), "user")
        ids = [_id(value.get("tool_call_id"))] if role == "tool" else []
        content = _text(value.get("content", place.value))
        messages = [ChatMessage(role=role, content=content, call_ids=ids, tool_name=_id(value.get("name")))]  # type: ignore[arg-type]
    yield from messages


def _as_chat(place: JsonPlace) -> JsonPlace:
    """Return a message of LangChain as a chat message."""
    value = place.value
    role = _LANGCHAIN.get(str(value.get("type"))) if isinstance(value, dict) and "role" not in value else None
    if role is None or "content" not in value:
        return place
    fields = {name: member for name, member in value.items() if name != "type"}
    return JsonPlace(place.file, {**fields, "role": role}, place.path, place.line)


def _message(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield the messages of an item: a chat message, an item of the Responses API, or a message with parts."""
    value = place.members()
    kind, parts = value.get("type"), value.get("parts")
    if kind in ("function_call", "custom_tool_call"):
        arguments = value.get("arguments", value.get("input"))
        call = contents.call_part(place.at("call_id").name(), place.at("name").name(), arguments)
        yield ChatMessage(role="assistant", calls=[call])
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield ChatMessage(role="tool", content=value.get("output"), call_ids=[place.at("call_id").name()])
    elif kind == "reasoning":
        texts = [item.get("text") for item in _objects(value.get("summary"))]
        yield ChatMessage(role="assistant", thinking="\n".join(text for text in texts if isinstance(text, str)))
    elif isinstance(parts, list):
        yield from _with_parts(place, parts)
    elif is_chat_message({**value, "type": None} if kind == "message" else value) or "role" in value:
        message = read_chat_message(place)
        yield replace(message, content=_plain(message.content)) if kind == "message" else message


def _plain(content: Any) -> Any:
    """Return the texts of the Responses API as blocks that `runs.external.contents` knows."""
    if not isinstance(content, list):
        return content
    return [item["text"] if isinstance(item, dict) and isinstance(item.get("text"), str) else item for item in content]


def _with_parts(place: JsonPlace, parts: Sequence[Any]) -> Iterator[ChatMessage]:
    """Yield the messages of an item with parts, in the form of OpenTelemetry's GenAI conventions."""
    role = _ROLES.get(str(place.at("role").value), "user")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCallPart] = []
    for part in _objects(parts):
        match part.get("type"):
            case "tool_call":
                calls.append(_call(part, part.get("arguments")))
            case "tool_call_response":
                output = _text(part.get("result", part.get("response")))
                yield ChatMessage(
                    role="tool",
                    content=output,
                    call_ids=[_id(part.get("id"))],
                    tool_name=_id(part.get("name")),
                )
            case "thinking" | "reasoning":
                thoughts.append(_text(part.get("content")))
            case _:
                texts.append(_text(part.get("content", part.get("text", part))))
    if texts or calls or thoughts:
        content = "\n".join(texts)
        thinking = "\n".join(thoughts)
        yield ChatMessage(role=role, content=content, thinking=thinking, calls=calls)  # type: ignore[arg-type]


def _gemini_system(request: Mapping[str, Any]) -> list[ChatMessage]:
    config = request.get("config")
    text = config.get("system_instruction") if isinstance(config, dict) else None
    return [ChatMessage(role="system", content=_text(text))] if text else []


def _gemini(items: Sequence[Any]) -> Iterator[ChatMessage]:
    for item in _objects(items):
        texts: list[str] = []
        calls: list[ToolCallPart] = []
        for part in _objects(item.get("parts")):
            call, response = part.get("function_call"), part.get("function_response")
            if isinstance(call, dict):
                calls.append(_call(call, call.get("args")))
            elif isinstance(response, dict):
                name, output = _id(response.get("name")), _text(response.get("response"))
                yield ChatMessage(role="tool", content=output, call_ids=[_id(response.get("id"))], tool_name=name)
            else:
                texts.append(_text(part.get("text", part)))
        if texts or calls:
            role = "assistant" if item.get("role") == "model" else "user"
            yield ChatMessage(role=role, content="\n".join(texts), calls=calls)  # type: ignore[arg-type]


def _from_attributes(attributes: Mapping[str, Any]) -> list[ChatMessage]:
    found: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        match = _ATTRIBUTE.fullmatch(name)
        if match:
            found.setdefault(int(match[1]), {})[match[2]] = value
    return [
        ChatMessage(
            role=_ROLES.get(str(one.get("role")), "user"),  # type: ignore[arg-type]
            content=_text(one.get("content")),
            call_ids=[_id(one.get("tool_call_id"))] if one.get("role") == "tool" else (),
            tool_name=_id(one.get("name")),
        )
        for _, one in sorted(found.items())
    ]


def _call(call: Mapping[str, Any], arguments: object) -> ToolCallPart:
    return contents.call_part(_id(call.get("id")), _id(call.get("name")) or "tool", arguments)


def _id(value: object) -> str:
    """Return an ID or a name as a text; empty for an invalid value."""
    return value[:MAX_NAME] if isinstance(value, str) and value.isprintable() else ""


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else canonical(value)
