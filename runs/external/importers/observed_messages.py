"""Reads the request and the answer of a traced model call in the forms of providers and of tracing libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from pydantic_ai.messages import ToolCallPart

from agentops.base.http.strict_json import NotJson
from runs.conversation.unknown_blocks import marked
from runs.external import contents
from runs.external.importers.base import ImportRefused, read_json
from runs.external.importers.block_dialects import (
    each_call_once,
    plain_content,
    plain_message,
    plain_output,
    plain_part,
)
from runs.external.importers.chat_messages import read_chat_messages
from runs.external.importers.conversation import ChatMessage
from runs.external.importers.json_place import MAX_NAME, JsonPlace
from runs.providers.messages import canonical

#: OpenInference's attributes of a message: `llm.input_messages.0.message.role`.
_ATTRIBUTE = re.compile(r"llm\.input_messages\.(\d+)\.message\.(role|content|name|tool_call_id)")
_ROLES = {"system": "system", "developer": "system", "assistant": "assistant", "model": "assistant", "tool": "tool"}
#: How many open calls are searched for the call of a result without a call ID. A file may have very many of both.
MAX_SEARCHED = 1000
#: Types of items of the Responses API that are not messages.
_ITEMS = frozenset(
    {"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"}
)


def sent_messages(place: JsonPlace, attributes: Mapping[str, Any]) -> list[ChatMessage]:
    """Return the messages of a request; empty for None. `attributes`: of its span, which may have the messages.

    A request in an unknown form becomes one user message with its text. Raises `ImportRefused` for invalid messages.
    """
    place = _decoded(place, _is_request)
    value = place.value
    if isinstance(value, dict) and isinstance(value.get("contents"), list):
        return [*_gemini_system(value), *_gemini(value["contents"])]
    listed = _message_list(place)
    if listed is not None:
        return [*_system_of(value), *(message for item in listed.items() for message in _observed(item))]
    from_attributes = _from_attributes(attributes)
    if from_attributes:
        return from_attributes
    arguments = value.get("args") if isinstance(value, dict) else None
    if isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], str):
        value = arguments[0]
    names = (name for name in ("prompt", "input") if isinstance(value, dict) and isinstance(value.get(name), str))
    if (name := next(names, None)) is not None:
        return [*_system_of(value), ChatMessage(role="user", content=value[name])]
    return [] if value is None else [ChatMessage(role="user", content=_text(value))]


def _message_list(place: JsonPlace) -> JsonPlace | None:
    """Return the list of messages in a request: the request, or its member `messages` or `input`; None without one.

    LangChain sends several requests at once, as a list of lists. The first one counts.
    """
    fields = place.value if isinstance(place.value, dict) else {}
    names = [name for name in ("messages", "input") if isinstance(fields.get(name), list)]
    listed = place.at(names[0]) if names else place
    if isinstance(listed.value, list) and len(listed.value) == 1 and isinstance(listed.value[0], list):
        [listed] = listed.items()
    items = listed.value
    return listed if isinstance(items, list) and items and all(isinstance(item, dict) for item in items) else None


def _system_of(request: Any) -> list[ChatMessage]:
    """Return the system message that a request has beside its messages, in the APIs of Anthropic and OpenAI."""
    fields = request if isinstance(request, dict) else {}
    system = next((fields[name] for name in ("system", "instructions") if fields.get(name)), None)
    return [ChatMessage(role="system", content=contents.text_content(system))] if isinstance(system, str | list) else []


def title_of_request(place: JsonPlace, attributes: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the first line of a request's last user message, as the title of a run; empty without one.

    `attributes`: see `sent_messages`. A request in an unknown form has no title.
    """
    place = _decoded(_unquoted(place), _is_request)
    is_text = isinstance(place.value, str) and not place.value.lstrip().startswith(("{", "["))
    if not is_text and not _is_request(place.value) and not _from_attributes(attributes):
        return ""
    try:
        messages = sent_messages(place, attributes)
    except ImportRefused:
        return ""
    texts = [contents.text_content(message.content).strip() for message in messages if message.role == "user"]
    # A message in an unknown form has become JSON.
    prompts = [text for text in texts if text and text[0] not in "{[" and not contents.is_of_program(text)]
    return prompts[-1].partition("\n")[0] if prompts else ""


def answered_message(place: JsonPlace, call_prefix: str) -> ChatMessage:
    """Return the answer in a response. A call without an ID gets an ID with the prefix `call_prefix`.

    Raises `ImportRefused` for invalid messages.
    """
    value = place.value
    messages = list(_answers(_decoded(place, _is_answer)))
    if not messages:
        return ChatMessage(role="assistant", content=None if value is None else _text(value))
    return _joined(messages, call_prefix)


#: The names of the finish reason in a response, in a choice of it, or in a message.
_FINISH_REASONS = ("finish_reason", "finishReason", "stop_reason", "stopReason")


def finish_reason_in(place: JsonPlace) -> str:
    """Return why the model ended the answer in a response, in the provider's words; empty if it is not known."""
    value = _decoded(place, _is_answer).value
    value = value[-1] if isinstance(value, list) and value else value
    for name in ("choices", "candidates"):
        choices = value.get(name) if isinstance(value, dict) else None
        value = choices[0] if isinstance(choices, list) and choices else value
    if not isinstance(value, dict):
        return ""
    details = value.get("incomplete_details")
    reasons = [value.get(name) for name in _FINISH_REASONS]
    reasons.append(details.get("reason") if isinstance(details, dict) else None)
    return next((reason for reason in reasons if isinstance(reason, str)), "")


def _unquoted(place: JsonPlace) -> JsonPlace:
    """Decode a text that is a JSON string. Some exports have the input of a trace as JSON of JSON."""
    is_quoted = isinstance(place.value, str) and place.value.startswith('"')
    return _parsed(place, lambda value: True) if is_quoted else place


def _decoded(place: JsonPlace, is_known: Callable[[Any], bool]) -> JsonPlace:
    """Decode a text that is a JSON object or list of a known form. Some exports have requests and answers as texts."""
    is_json = isinstance(place.value, str) and place.value.lstrip().startswith(("{", "["))
    return _parsed(place, is_known) if is_json else place


def _parsed(place: JsonPlace, is_known: Callable[[Any], bool]) -> JsonPlace:
    """Parse a JSON text. Returns `place` itself if the text is not JSON, or if its value is not known."""
    try:
        value = read_json(place.value.encode(errors="replace"))
    except NotJson:
        return place
    return place.with_value(value) if is_known(value) else place


def _is_request(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) and ("role" in item or "type" in item) for item in value)
    return isinstance(value, dict) and not {"messages", "contents", "prompt", "args", "input"}.isdisjoint(value)


def _is_answer(value: Any) -> bool:
    if isinstance(value, list):
        return _is_request(value)
    return isinstance(value, dict) and not {"role", "choices", "output", "generations"}.isdisjoint(value)


def is_response_item(value: object) -> bool:
    """Return whether a value is an item of the Responses API."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        return False
    return value["type"] in _ITEMS or (value["type"] == "message" and isinstance(value.get("role"), str))


def is_answer_item(value: object) -> bool:
    """Return whether a value is an item of the Responses API that belongs to an answer."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        return False
    if "role" in value:
        return bool(value["type"] == "message" and value["role"] == "assistant")
    return not value["type"].endswith("_output")


def answer_of_items(places: Sequence[JsonPlace]) -> ChatMessage:
    """Return the answer that consecutive items of the Responses API form. Raises `ImportRefused`."""
    return _joined([message for place in places for message in item_messages(place)], "")


def _joined(messages: Sequence[ChatMessage], call_prefix: str) -> ChatMessage:
    """Return several parts of an answer as one message. A call without an ID gets one with this prefix."""
    parts = [part for one in messages for part in (one.content if isinstance(one.content, list) else [one.content])]
    calls = [call for one in messages for call in one.calls]
    return ChatMessage(
        role="assistant",
        content=[part for part in parts if part],
        thinking="\n".join(one.thinking for one in messages if one.thinking),
        calls=each_call_once(
            replace(call, tool_call_id=call.tool_call_id or f"{call_prefix}:{i}") for i, call in enumerate(calls)
        ),
    )


def instructions_of(place: JsonPlace) -> list[ChatMessage]:
    """Return the system message that a response of OpenAI's Responses API repeats; empty without one."""
    text = place.value.get("instructions") if isinstance(place.value, dict) else None
    return [ChatMessage(role="system", content=text)] if isinstance(text, str) and text else []


def with_call_id(message: ChatMessage, open_calls: Mapping[str, ToolCallPart]) -> ChatMessage:
    """Return a tool result without a call ID with the ID of an open call of its tool; other messages unchanged."""
    if message.role != "tool" or any(message.call_ids):
        return message
    return replace(message, call_ids=[open_call(message.tool_name, open_calls)])


def open_call(tool_name: str, open_calls: Mapping[str, ToolCallPart]) -> str:
    """Return the ID of the first open call of a tool; empty if none of the oldest 1,000 open calls matches."""
    oldest = islice(open_calls.items(), MAX_SEARCHED)
    return next((call_id for call_id, call in oldest if call.tool_name == tool_name), "")


def _answers(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield the messages in a response. Of several choices, only the first counts. Nothing for an unknown form."""
    value = place.value
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        for choice in list(place.at("choices").items())[:1]:
            yield from _observed(choice.at("message"))
    elif isinstance(value, list) or (isinstance(value, dict) and isinstance(value.get("output"), list)):
        for item in (place if isinstance(value, list) else place.at("output")).items():
            yield from _observed(item) if isinstance(item.value, dict) else ()
    elif isinstance(value, dict):
        if isinstance(value.get("content"), dict):
            yield from _gemini([value["content"]])
        elif isinstance(value.get("generations"), list):
            yield from _generated(place)
        elif "role" in value or plain_message(value) is not value:
            yield from _observed(place)


def _generated(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield the answer in a result of LangChain: of the first generation of the first request."""
    first = place.at("generations")
    while isinstance(first.value, list) and first.value:
        first = next(first.items())
    if isinstance(first.value, dict) and isinstance(first.value.get("message"), dict):
        yield from _observed(first.at("message"))
    elif isinstance(first.value, dict) and isinstance(first.value.get("text"), str):
        yield ChatMessage(role="assistant", content=first.value["text"])


def _observed(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield the messages of an item. An item in an unknown form becomes a message with its text."""
    try:
        messages = list(item_messages(place))
    except ImportRefused:
        value = place.value if isinstance(place.value, dict) else {}
        role = _ROLES.get(str(value.get("role")), "user")
        ids = [_id(value.get("tool_call_id"))] if role == "tool" else []
        content = value.get("content")
        text = content if isinstance(content, str) else marked(value) if role != "tool" else _text(content or value)
        messages = [ChatMessage(role=role, content=text, call_ids=ids, tool_name=_id(value.get("name")))]  # type: ignore[arg-type]
    yield from messages


def item_messages(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield the messages of a chat message, an item of the Responses API, or a message with parts.

    An item of an unknown type becomes a message with a marked text. Raises `ImportRefused`.
    """
    place = place.with_value(plain_message(place.value))
    value = place.members()
    kind, parts = value.get("type"), value.get("parts")
    if kind in ("function_call", "custom_tool_call"):
        arguments = value.get("arguments", value.get("input"))
        call = contents.call_part(place.at("call_id").name(), place.at("name").name(), arguments)
        yield ChatMessage(role="assistant", calls=[call])
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = plain_output(value.get("output"))
        yield ChatMessage(role="tool", content=output, call_ids=[place.at("call_id").name()])
    elif kind == "reasoning":
        texts = [item.get("text") for item in _objects(value.get("summary"))]
        yield ChatMessage(role="assistant", thinking="\n".join(text for text in texts if isinstance(text, str)))
    elif isinstance(parts, list):
        yield from _with_parts(place, parts)
    elif "role" in value:
        yield from read_chat_messages(place)
    elif isinstance(kind, str):
        role = "user" if kind.endswith("_output") else "assistant"
        yield ChatMessage(role=role, content=[{"type": "text", "text": marked(value)}])  # type: ignore[arg-type]


def _with_parts(place: JsonPlace, parts: Sequence[Any]) -> Iterator[ChatMessage]:
    """Yield the messages of an item with parts, in the form of OpenTelemetry's GenAI conventions."""
    role = _ROLES.get(str(place.at("role").value), "user")
    blocks: list[Mapping[str, Any]] = []
    thoughts: list[str] = []
    calls: list[ToolCallPart] = []
    for part in _objects(parts):
        match part.get("type"):
            case "tool_call":
                calls.append(_call(part, part.get("arguments")))
            case "tool_call_response":
                output, name = plain_output(part.get("result", part.get("response"))), _id(part.get("name"))
                text = contents.text_content(output) if isinstance(output, list) else _text(output)
                yield ChatMessage(role="tool", content=text, call_ids=[_id(part.get("id"))], tool_name=name)
            case "thinking" | "reasoning":
                thoughts.append(_text(part.get("content")))
            case _:
                blocks.append(plain_part(part))
    thinking = "\n".join(filter(None, thoughts))
    if blocks or calls or thinking:
        yield ChatMessage(role=role, content=blocks, thinking=thinking, calls=each_call_once(calls))  # type: ignore[arg-type]


def _gemini_system(request: Mapping[str, Any]) -> list[ChatMessage]:
    config = request.get("config")
    text = config.get("system_instruction") if isinstance(config, dict) else None
    return [ChatMessage(role="system", content=_text(text))] if text else []


def _gemini(items: Sequence[Any]) -> Iterator[ChatMessage]:
    """Yield the messages of contents in the form of Gemini's API for Python."""
    for item in _objects(items):
        blocks: list[Any] = []
        calls: list[ToolCallPart] = []
        for part in _objects(item.get("parts")):
            call = part.get("function_call", part.get("functionCall"))
            response = part.get("function_response", part.get("functionResponse"))
            if isinstance(call, dict):
                calls.append(_call(call, call.get("args")))
            elif isinstance(response, dict):
                name, output = _id(response.get("name")), _text(response.get("response"))
                yield ChatMessage(role="tool", content=output, call_ids=[_id(response.get("id"))], tool_name=name)
            else:
                blocks += plain_content([part])
        if blocks or calls:
            role = "assistant" if item.get("role") == "model" else "user"
            yield ChatMessage(role=role, content=blocks, calls=each_call_once(calls))  # type: ignore[arg-type]


def _from_attributes(attributes: Mapping[str, Any]) -> list[ChatMessage]:
    """Return the messages in the attributes of OpenInference; empty without any."""
    fields: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        if match := _ATTRIBUTE.fullmatch(name):
            fields.setdefault(int(match[1]), {})[match[2]] = value
    return [
        ChatMessage(
            role=_ROLES.get(str(one.get("role")), "user"),  # type: ignore[arg-type]
            content=_text(one.get("content")),
            call_ids=[_id(one.get("tool_call_id"))] if one.get("role") == "tool" else (),
            tool_name=_id(one.get("name")),
        )
        for _, one in sorted(fields.items())
    ]


def _call(call: Mapping[str, Any], arguments: object) -> ToolCallPart:
    return contents.call_part(_id(call.get("id")), _id(call.get("name")) or "tool", arguments)


def _id(value: object) -> str:
    """Return an ID or a name as a text; empty for an invalid value."""
    return value[:MAX_NAME] if isinstance(value, str) and value.isprintable() else ""


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    """Return a text, or any other value as JSON; empty for None."""
    return value if isinstance(value, str) else "" if value is None else canonical(value)
