"""Rewrites messages and blocks of other libraries in the form of chat messages with Anthropic's blocks.

- Converse, the API of Amazon Bedrock, which Strands uses for all models: `{"toolUse": {"toolUseId": …}}`.
- LangChain: `{"lc": 1, "type": "constructor", "id": […], "kwargs": {…}}`, `{"type": "ai", "data": {…}}` and
  `{"type": "ai", "content": …}`.
- OpenAI's Responses API within a message: `{"type": "function_call", "call_id": …}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pydantic_ai.messages import ToolCallPart

from agentops.base.http.strict_json import NotJson
from runs.conversation.unknown_blocks import marked
from runs.external.importers.base import read_json
from runs.providers.messages import canonical

#: The roles of LangChain's message types.
_LANGCHAIN = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
}
#: Types of blocks that `runs.external.contents` and `chat_messages` read.
_KNOWN = (
    *("text", "thinking", "image", "image_url", "input_image", "document"),
    *("tool_use", "tool_call", "tool-call", "tool_result"),
)
#: Members of a block in Gemini's form, and of Converse: places in a prompt where a cache begins.
_GEMINI = frozenset({"text", "inlineData", "thought", "thoughtSignature"})
_CACHE_POINTS = frozenset({"cachePoint"})
Block = Mapping[str, Any]


def plain_message(value: Any) -> Any:
    """Return a message of LangChain as a chat message; any other value unchanged."""
    if not isinstance(value, Mapping):
        return value
    fields = next((value[name] for name in ("kwargs", "data") if isinstance(value.get(name), Mapping)), value)
    kind = fields.get("type", value.get("type"))
    role = _LANGCHAIN.get(kind) if isinstance(kind, str) and "role" not in fields else None
    if role is None or "content" not in fields:
        return value
    message = {name: member for name, member in fields.items() if name != "type"} | {"role": role}
    if role == "tool" and message.pop("status", None) == "error":
        message["error"] = message["content"]
    return message


def plain_content(content: Any) -> Any:
    """Return the content of a message with its blocks in known forms. An unknown block becomes a marked text."""
    if not isinstance(content, list):
        return content
    return [block for item in content for block in _plain_blocks(item, marked)]


def plain_output(content: Any) -> Any:
    """Return the output of a tool with its blocks in known forms. Its other values are no blocks, and have no mark."""
    if not isinstance(content, list):
        return content
    return [block for item in content for block in _plain_blocks(item, None)]


def _plain_blocks(item: Any, mark: Callable[[Block], str] | None) -> Iterable[Any]:
    """Yield a block in a known form; nothing for a block without content. `mark`: writes an unknown block as a text."""
    if not isinstance(item, Mapping):
        yield item
        return
    if item.keys() <= _CACHE_POINTS and item:
        return
    known = _of_converse(item) or _of_type(item)
    if known is not None and known.get("type") == "thinking" and not (known["thinking"] or known["signature"]):
        return
    if known is not None:
        yield known
    elif mark is None or (item and item.keys() <= _GEMINI) or item.get("type") in _KNOWN:
        yield item
    else:
        yield {"type": "text", "text": mark(item)}


def _of_type(item: Block) -> Block | None:
    """Return a block with a type that has another name in Anthropic's API; None for any other block."""
    match item.get("type"):
        case "image" if isinstance(item.get("image"), str):  # Inspect
            return {"type": "image_url", "image_url": {"url": item["image"]}}
        case "input_text" | "output_text" if isinstance(item.get("text"), str):
            return {"type": "text", "text": item["text"]}
        case "refusal" if isinstance(item.get("refusal"), str):
            return {"type": "text", "text": item["refusal"]}
        case "reasoning":
            summary = item.get("summary")
            texts = (
                [one.get("text") for one in summary if isinstance(one, Mapping)] if isinstance(summary, list) else []
            )
            texts += [item[name] for name in ("reasoning", "text") if isinstance(item.get(name), str)]
            thinking = "\n".join(text for text in texts if isinstance(text, str))
            return {"type": "thinking", "thinking": thinking, "signature": item.get("signature")}
        case "function_call" if isinstance(item.get("call_id"), str):
            call = {"id": item["call_id"], "name": item.get("name"), "input": item.get("arguments")}
            return {"type": "tool_use", **call}
    return None


def _of_converse(item: Block) -> Block | None:
    """Return a block of Converse, which has a single member named after its type; None for any other block."""
    name, value = next(iter(item.items())) if len(item) == 1 else ("", None)
    if name == "text" and isinstance(value, str):
        return {"type": "text", "text": value}
    if not isinstance(value, Mapping):
        return None
    match name:
        case "toolUse":
            call = {"id": value.get("toolUseId"), "name": value.get("name"), "input": value.get("input")}
            return {"type": "tool_use", **call}
        case "toolResult":
            return {
                "type": "tool_result",
                "tool_use_id": value.get("toolUseId"),
                "content": plain_output(value.get("content")),
                "is_error": value.get("status") == "error",
            }
        case "reasoningContent":
            text = value.get("reasoningText")
            text = text if isinstance(text, Mapping) else {}
            return {"type": "thinking", "thinking": text.get("text") or "", "signature": text.get("signature")}
        case "json":
            return {"type": "text", "text": canonical(value)}
        case "image":
            source = value.get("source")
            data = source.get("bytes") if isinstance(source, Mapping) else None
            if isinstance(data, str) and isinstance(value.get("format"), str):
                encoded = {"type": "base64", "media_type": f"image/{value['format']}", "data": data}
                return {"type": "image", "source": encoded}
    return None


def plain_part(part: Block) -> Block:
    """Return a part of a message in OpenTelemetry's GenAI conventions, without calls and results, as a block."""
    content = part.get("content")
    is_image = part.get("modality") == "image" or str(part.get("mime_type")).startswith("image/")
    match part.get("type"):
        case "text" if isinstance(content, str):
            return {"type": "text", "text": content}
        case "blob" if is_image and isinstance(content, str):
            return {"type": "image", "source": {"type": "base64", "media_type": part.get("mime_type"), "data": content}}
        case "uri" if is_image and isinstance(part.get("uri"), str):
            return {"type": "image_url", "image_url": {"url": part["uri"]}}
    return next(iter(plain_content([part])), {"type": "text", "text": ""})


def each_call_once(calls: Iterable[ToolCallPart]) -> list[ToolCallPart]:
    """Return the calls of an answer, without repeats of a call: with the same ID and tool.

    LangChain writes a call as a block and in a list, and OpenInference in two attributes. A repeat may lack the
    arguments. Calls with the same ID and different arguments, which some models return, are all kept.
    """
    once: list[ToolCallPart] = []
    for call in calls:
        same = (one for one in once if call.tool_call_id and _is_same(one, call))
        known = next(same, None)
        if known is None:
            once.append(call)
        elif not _has_arguments(known):
            once[once.index(known)] = call
    return once


def _is_same(one: ToolCallPart, other: ToolCallPart) -> bool:
    if (one.tool_call_id, one.tool_name) != (other.tool_call_id, other.tool_name):
        return False
    return not (_has_arguments(one) and _has_arguments(other)) or arguments_of(one) == arguments_of(other)


def _has_arguments(call: ToolCallPart) -> bool:
    return bool(call.args) and call.args != "{}"


def arguments_of(call: ToolCallPart) -> str:
    """Return the arguments of a call as canonical JSON, also if they were sent as a text."""
    value: Any = call.args or {}
    if isinstance(value, str):
        with suppress(NotJson):
            value = read_json(value.encode(errors="replace"))
    return canonical(value)
