"""Reads messages in the format of OpenAI's Chat Completions API and in its variants in other programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic_ai.messages import ToolCallPart

from runs.external import contents
from runs.external.importers.block_dialects import each_call_once, plain_content, plain_message, plain_output
from runs.external.importers.conversation import ChatMessage
from runs.external.importers.json_place import MAX_NAME, JsonPlace

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "model": "assistant"}
#: Types of blocks that are calls, in the forms of Anthropic, OpenTelemetry and Vercel.
_CALL_BLOCKS = ("tool_use", "tool_call", "tool-call")
_RESULT_ROLES = ("tool", "function")


def read_chat_message(place: JsonPlace) -> ChatMessage:
    """Return a message. Raises `ImportRefused` if the value is invalid."""
    place = place.with_value(plain_message(place.value))
    role = place.at("role").text(None)
    content = place.at("content")
    if content.value is not None and not isinstance(content.value, str | list):
        raise content.refuse("must be a text or a list")
    if role in _RESULT_ROLES:
        return _result(place)
    content = content.with_value(plain_content(content.value))
    if role not in _ROLES:
        raise place.at("role").refuse(f"{role[:64]!r} is no role of a message")
    if role not in ("assistant", "model"):
        return ChatMessage(role="system" if _ROLES[role] == "system" else "user", content=content.value)
    blocks = list(content.items()) if isinstance(content.value, list) else []
    calls = [_call(call) for call in place.at("tool_calls").items()]
    calls += [_block_call(block) for block in blocks if _type_of(block) in _CALL_BLOCKS]
    if place.at("function_call").value is not None:
        # The older form has no call IDs: the following result names the function.
        function = place.at("function_call").at("name").name()
        calls.append(contents.call_part(function, function, place.at("function_call", "arguments").value))
    texts = [one.value for one in blocks if _type_of(one) not in _CALL_BLOCKS] if blocks else content.value
    return ChatMessage(
        role="assistant",
        content=texts or place.at("refusal").value,
        thinking=contents.text_or_empty(place.at("reasoning_content").value or place.at("reasoning").value),
        calls=each_call_once(calls),
    )


def read_chat_messages(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield a message, and each result among its blocks as a separate message. Raises `ImportRefused`.

    Results are blocks of user messages in Anthropic's API, of tool messages in Strands, and of answers in Inspect, for
    tools of the provider.
    """
    place = place.with_value(plain_message(place.value))
    role, content = place.at("role").value, place.at("content").with_value(plain_content(place.at("content").value))
    blocks = list(content.items()) if isinstance(content.value, list) else []
    may_have_results = role == "user" or role in _RESULT_ROLES
    results = [block for block in blocks if may_have_results and _type_of(block) == "tool_result"]
    if role in _RESULT_ROLES and not results:
        yield read_chat_message(place)
        return
    message = read_chat_message(place.with_value({**place.members(), "role": "user"}) if results else place)
    if message.role == "assistant":
        yield message
        for block in blocks:
            if _type_of(block) == "tool_use" and "tool_type" in block.members():
                error = block.at("error").value
                output = error or block.at("result").value
                call_ids = [block.at("id").name()]
                yield ChatMessage(role="tool", content=output, call_ids=call_ids, has_failed=error is not None)
        return
    for block in results:
        yield ChatMessage(
            role="tool",
            content=plain_output(block.at("content").value),
            call_ids=[block.at("tool_use_id").name()],
            has_failed=block.at("is_error").value is True,
        )
    rest = [block.value for block in blocks if block not in results]
    if rest or not results:
        yield replace(message, content=rest) if results else message


def _type_of(block: JsonPlace) -> object:
    return block.value.get("type") if isinstance(block.value, dict) else None


def _block_call(block: JsonPlace) -> ToolCallPart:
    """Return the call in a block of an answer."""
    fields = block.members()
    arguments = next((fields[name] for name in ("input", "arguments", "args") if name in fields), None)
    call_id = next((block.at(name) for name in ("id", "toolCallId", "call_id") if name in fields), None)
    name = block.at("toolName") if "toolName" in block.members() else block.at("name")
    return contents.call_part((call_id or block.at("id")).name(), name.name(), arguments)


def is_chat_message(value: object) -> bool:
    """Return whether a value looks like a chat message."""
    return (
        isinstance(value, Mapping)
        and value.get("role") in (*_ROLES, *_RESULT_ROLES)
        and isinstance(value.get("content"), str | list | None)
        and not {"parts", "type"} & value.keys()
    )


def _result(place: JsonPlace) -> ChatMessage:
    """Return the tool result in a message whose role is one of `_RESULT_ROLES`."""
    ids = [item.name() for item in place.at("tool_call_ids").items()]  # SWE-agent
    if not ids and place.at("role").value == "function":
        ids = [place.at("name").name()]
    name = place.at("name").value or place.at("function").value
    error = place.at("error").value  # Inspect
    content = place.at("content").value
    if error and not content:
        content = error.get("message") if isinstance(error, dict) else error
    return ChatMessage(
        role="tool",
        content=plain_output(content),
        call_ids=ids or [place.at("tool_call_id").name()],
        tool_name=name[:MAX_NAME] if isinstance(name, str) and name.isprintable() else "",
        has_failed=bool(error),
    )


def _call(place: JsonPlace) -> ToolCallPart:
    """Return the call in an entry of `tool_calls`."""
    function, custom = place.at("function"), place.at("custom")
    if custom.value is not None:
        return contents.call_part(place.at("id").name(), custom.at("name").name(), custom.at("input").value)
    if function.value is None:  # LangChain
        arguments = next((place.at(name).value for name in ("args", "arguments") if name in place.members()), None)
        return contents.call_part(place.at("id").name(), place.at("name").name(), arguments)
    if isinstance(function.value, str):  # Inspect
        return contents.call_part(place.at("id").name(), function.name(), place.at("arguments").value)
    return contents.call_part(place.at("id").name(), function.at("name").name(), function.at("arguments").value)
