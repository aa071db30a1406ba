"""Reads messages in the format of OpenAI's Chat Completions API, and its variants in other programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ToolCallPart

from runs.external import contents
from runs.external.importers.reading.conversation import ChatMessage
from runs.external.importers.reading.json_place import MAX_NAME, JsonPlace

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "model": "assistant"}
#: Types of blocks that are calls, in the forms of Anthropic, OpenTelemetry and Vercel.
_CALL_BLOCKS = ("tool_use", "tool_call", "tool-call")
_RESULT_ROLES = ("tool", "function")


def read_chat_message(place: JsonPlace) -> ChatMessage:
    """Return a message. Raises `ImportRefused` if the value is invalid."""
    role = place.at("role").text(None)
    content = place.at("content")
    if content.value is not None and not isinstance(content.value, str | list):
        raise content.refuse("must be a text or a list")
    if role in _RESULT_ROLES:
        return _result(place)
    if role not in _ROLES:
        raise place.at("role").refuse(f"{role[:64]!r} is no role of a message")
    if role not in ("assistant", "model"):
        return ChatMessage(role="system" if _ROLES[role] == "system" else "user", content=_readable(content.value))
    blocks = list(content.items()) if isinstance(content.value, list) else []
    calls = [_call(call) for call in place.at("tool_calls").items()]
    calls += [_block_call(block) for block in blocks if _type_of(block) in _CALL_BLOCKS]
    if place.at("function_call").value is not None:
        # The older form has no ID: the following result names the function.
        calls.append(_function_call(place.at("function_call")))
    texts = [one.value for one in blocks if _type_of(one) not in _CALL_BLOCKS] if blocks else content.value
    return ChatMessage(
        role="assistant",
        content=_readable(texts) or place.at("refusal").value,
        thinking=_thinking(place),
        calls=calls,
    )


def read_chat_messages(place: JsonPlace) -> Iterator[ChatMessage]:
    """Yield a message, and the results of calls among its blocks as separate messages. Raises `ImportRefused`.

    Anthropic's API has results in user messages. Inspect has the results of provider tools in answers.
    """
    message = read_chat_message(place)
    content = place.at("content")
    blocks = list(content.items()) if isinstance(content.value, list) else []
    if message.role == "assistant":
        yield message
        for block in blocks:
            if _type_of(block) == "tool_use" and "tool_type" in block.members():
                error = block.at("error").value
                output = error or block.at("result").value
                yield ChatMessage(
                    role="tool", content=output, call_ids=[block.at("id").name()], has_failed=error is not None
                )
        return
    results = [block for block in blocks if _type_of(block) == "tool_result"] if message.role == "user" else []
    for block in results:
        yield ChatMessage(
            role="tool",
            content=block.at("content").value,
            call_ids=[block.at("tool_use_id").name()],
            has_failed=block.at("is_error").value is True,
        )
    rest = [block.value for block in blocks if block not in results]
    if rest or not results:
        yield replace(message, content=_readable(rest)) if results else message


def _type_of(block: JsonPlace) -> object:
    return block.value.get("type") if isinstance(block.value, dict) else None


def _block_call(block: JsonPlace) -> ToolCallPart:
    """Return a call that is a block of an answer."""
    arguments = next((block.at(name).value for name in ("input", "arguments", "args") if name in block.members()), None)
    call_id = next((block.at(name) for name in ("id", "toolCallId", "call_id") if name in block.members()), None)
    name = block.at("toolName") if "toolName" in block.members() else block.at("name")
    return contents.call_part((call_id or block.at("id")).name(), name.name(), arguments)


def is_chat_message(value: object) -> bool:
    """Return whether a value looks like a message."""
    return (
        isinstance(value, Mapping)
        and value.get("role") in (*_ROLES, *_RESULT_ROLES)
        and isinstance(value.get("content"), str | list | None)
        and not {"parts", "type"} & value.keys()
    )


def _result(place: JsonPlace) -> ChatMessage:
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
        content=_readable(content),
        call_ids=ids or [place.at("tool_call_id").name()],
        tool_name=name[:MAX_NAME] if isinstance(name, str) and name.isprintable() else "",
        has_failed=bool(error),
    )


def _call(place: JsonPlace) -> ToolCallPart:
    function = place.at("function")
    if place.at("custom").value is not None:
        custom = place.at("custom")
        return contents.call_part(place.at("id").name(), custom.at("name").name(), custom.at("input").value)
    if function.value is None:  # LangChain
        arguments = next((place.at(name).value for name in ("args", "arguments") if name in place.members()), None)
        return contents.call_part(place.at("id").name(), place.at("name").name(), arguments)
    if isinstance(function.value, str):  # Inspect
        return contents.call_part(place.at("id").name(), function.name(), place.at("arguments").value)
    return contents.call_part(place.at("id").name(), function.at("name").name(), function.at("arguments").value)


def _function_call(place: JsonPlace) -> ToolCallPart:
    name = place.at("name").name()
    return contents.call_part(name, name, place.at("arguments").value)


def _thinking(place: JsonPlace) -> str:
    value = place.at("reasoning_content").value or place.at("reasoning").value
    return value if isinstance(value, str) else ""


def _readable(content: Any) -> Any:
    """Return a content in forms that `runs.external.contents` supports, converted from Inspect's forms."""
    if not isinstance(content, list):
        return content
    return [_block(block) if isinstance(block, Mapping) else block for block in content]


def _block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block.get("type") == "image" and isinstance(block.get("image"), str):
        return {"type": "image_url", "image_url": {"url": block["image"]}}
    if block.get("type") == "refusal" and isinstance(block.get("refusal"), str):
        return {"type": "text", "text": block["refusal"]}
    if block.get("type") == "reasoning":
        return {"type": "thinking", "thinking": block.get("reasoning") or "", "signature": block.get("signature")}
    return block
