"""The protocols of model providers: requests read as a `Conversation`, and a `Turn` written as an answer.

An answer is a JSON document, or for a streamed request the data of its server-sent events, each with its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.newest.script import Conversation, Turn

Json = dict[str, Any]
Events = Iterator[tuple[str, Json]]
#: A time in the answers of OpenAI.
CREATED = 1_795_000_000


@dataclass(frozen=True)
class Protocol:
    """A protocol: how it reads requests and writes answers."""

    name: str
    #: The end of the request's path.
    path: str
    has_cache_writes: bool
    reasons: bool
    read: Callable[[Json], Conversation]
    #: Writes the answer with an ID and a model.
    write: Callable[[Turn, str, str], Json]
    stream: Callable[[Turn, str, str], Events]


def text_of(content: Any) -> str:
    """Return the texts of a content: a text, or blocks."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else "" if content is None else json.dumps(content)
    texts = [block if isinstance(block, str) else block.get("text") for block in content]
    return "\n".join(text for text in texts if isinstance(text, str))


# --- Anthropic's Messages API ---


def _read_anthropic(body: Json) -> Conversation:
    names: dict[str, str] = {}
    results: list[str] = []
    messages = [("system", text_of(body["system"]))] if body.get("system") else []
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        names |= {block["id"]: block["name"] for block in blocks if block["type"] == "tool_use"}
        of_tools = [block for block in blocks if block["type"] == "tool_result"]
        results += [names.get(block["tool_use_id"], "") for block in of_tools]
        messages += [("tool", text_of(block.get("content"))) for block in of_tools]
        if len(of_tools) < len(blocks) or not blocks:
            messages.append((message["role"], text_of(message["content"])))
    tools = [tool["name"] for tool in body.get("tools", [])]
    return Conversation(body["model"], tools, results, messages, bool(body.get("stream")))


def _anthropic_usage(turn: Turn) -> Json:
    tokens = turn.tokens
    return {
        "input_tokens": tokens.uncached,
        "output_tokens": tokens.all_output,
        "cache_read_input_tokens": tokens.cache_read,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.cache_write_5m,
            "ephemeral_1h_input_tokens": tokens.cache_write_1h,
        },
    }


def _write_anthropic(turn: Turn, answer_id: str, model: str) -> Json:
    texts = [{"type": "text", "text": text} for text in turn.texts]
    calls = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in turn.calls]
    return {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [*texts, *calls],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": _anthropic_usage(turn),
    }


def _stream_anthropic(turn: Turn, answer_id: str, model: str) -> Events:
    whole = _write_anthropic(turn, answer_id, model)
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield "message_start", {"type": "message_start", "message": begun}
    for index, block in enumerate(whole["content"]):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if block["type"] == "text"
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        at = {"index": index}
        yield "content_block_start", {"type": "content_block_start", **at, "content_block": empty}
        yield "content_block_delta", {"type": "content_block_delta", **at, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", **at}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": whole["usage"]}
    yield "message_stop", {"type": "message_stop"}


# --- OpenAI's Chat Completions API ---


def _read_chat(body: Json) -> Conversation:
    names: dict[str, str] = {}
    results: list[str] = []
    messages = []
    for message in body["messages"]:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or []}
        if message["role"] == "tool":
            results.append(names.get(message["tool_call_id"], ""))
        role = "system" if message["role"] == "developer" else message["role"]
        messages.append((role, text_of(message.get("content"))))
    tools = [tool["function"]["name"] for tool in body.get("tools", [])]
    return Conversation(body["model"], tools, results, messages, bool(body.get("stream")))


def _chat_usage(turn: Turn) -> Json:
    tokens = turn.tokens
    return {
        "prompt_tokens": tokens.all_input,
        "completion_tokens": tokens.all_output,
        "total_tokens": tokens.all_input + tokens.all_output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning, "audio_tokens": 0},
    }


def _chat_message(turn: Turn) -> Json:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in turn.calls
    ]
    return {"role": "assistant", "content": turn.text or None, **({"tool_calls": calls} if calls else {})}


def _write_chat(turn: Turn, answer_id: str, model: str) -> Json:
    finish = "tool_calls" if turn.calls else "stop"
    choice = {"index": 0, "message": _chat_message(turn), "finish_reason": finish, "logprobs": None}
    whole = {"id": answer_id, "object": "chat.completion", "created": CREATED, "model": model}
    return {**whole, "choices": [choice], "usage": _chat_usage(turn)}


def _stream_chat(turn: Turn, answer_id: str, model: str) -> Events:
    head = {"id": answer_id, "object": "chat.completion.chunk", "created": CREATED, "model": model}
    message = _chat_message(turn)
    calls = [{**call, "index": index} for index, call in enumerate(message.get("tool_calls", []))]
    deltas: list[Json] = [{"role": "assistant", "content": ""}, *({"content": text} for text in turn.texts)]
    deltas += [{"tool_calls": [call]} for call in calls]
    for delta in deltas:
        yield "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    finish = "tool_calls" if calls else "stop"
    yield "", {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    yield "", {**head, "choices": [], "usage": _chat_usage(turn)}


# --- OpenAI's Responses API ---


def _read_responses(body: Json) -> Conversation:
    names: dict[str, str] = {}
    results: list[str] = []
    messages = [("system", body["instructions"])] if body.get("instructions") else []
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            names[item["call_id"]] = item["name"]
        elif kind == "function_call_output":
            results.append(names.get(item["call_id"], ""))
            messages.append(("tool", text_of(item["output"])))
        elif kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append((role, text_of(item["content"])))
    tools = [tool["name"] for tool in body.get("tools", []) if "name" in tool]
    return Conversation(body["model"], tools, results, messages, bool(body.get("stream")))


def _write_responses(turn: Turn, answer_id: str, model: str) -> Json:
    tokens = turn.tokens
    items: list[Json] = [{"type": "reasoning", "id": f"rs_{answer_id}", "summary": []}]
    items += [
        {
            "type": "message",
            "id": f"msg_{answer_id}_{index}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
        for index, text in enumerate(turn.texts)
    ]
    items += [
        {
            "type": "function_call",
            "id": f"fc_{answer_id}_{index}",
            "call_id": call.id,
            "name": call.name,
            "arguments": json.dumps(call.arguments),
            "status": "completed",
        }
        for index, call in enumerate(turn.calls)
    ]
    return {
        "id": answer_id,
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "model": model,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": tokens.all_input,
            "input_tokens_details": {"cached_tokens": tokens.cache_read, "cache_write_tokens": 0},
            "output_tokens": tokens.all_output,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.all_input + tokens.all_output,
        },
    }


def _stream_responses(turn: Turn, answer_id: str, model: str) -> Events:
    whole = _write_responses(turn, answer_id, model)
    events: list[Json] = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}]
    for index, item in enumerate(whole["output"]):
        at = {"item_id": item["id"], "output_index": index}
        begun = {**item, "content": []} if item["type"] == "message" else item
        begun = {**begun, "arguments": ""} if item["type"] == "function_call" else begun
        events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        if item["type"] == "message":
            part = item["content"][0]
            within = {**at, "content_index": 0}
            events += [
                {"type": "response.content_part.added", **within, "part": {**part, "text": ""}},
                {"type": "response.output_text.delta", **within, "delta": part["text"], "logprobs": []},
                {"type": "response.output_text.done", **within, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **within, "part": part},
            ]
        elif item["type"] == "function_call":
            arguments = {"arguments": item["arguments"], "name": item["name"]}
            events += [
                {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]},
                {"type": "response.function_call_arguments.done", **at, **arguments},
            ]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(events):
        yield event["type"], {**event, "sequence_number": number}


# --- Gemini's API ---


def _read_gemini(body: Json) -> Conversation:
    results: list[str] = []
    messages: list[tuple[str, str]] = []
    if body.get("systemInstruction"):
        messages.append(("system", text_of(body["systemInstruction"]["parts"])))
    for content in body["contents"]:
        responses = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        results += [response["name"] for response in responses]
        messages += [("tool", json.dumps(response["response"], ensure_ascii=False)) for response in responses]
        if len(responses) < len(content["parts"]):
            role = "assistant" if content.get("role") == "model" else "user"
            messages.append((role, text_of(content["parts"])))
    declared = [function for tool in body.get("tools", []) for function in tool.get("functionDeclarations", [])]
    return Conversation(body["model"], [one["name"] for one in declared], results, messages)


def _write_gemini(turn: Turn, answer_id: str, model: str) -> Json:
    tokens = turn.tokens
    parts: list[Json] = [{"text": text} for text in turn.texts]
    parts += [{"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}} for call in turn.calls]
    return {
        "responseId": answer_id,
        "modelVersion": model,
        "candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
        "usageMetadata": {
            "promptTokenCount": tokens.all_input,
            "cachedContentTokenCount": tokens.cache_read,
            "candidatesTokenCount": tokens.output,
            "thoughtsTokenCount": tokens.reasoning,
            "totalTokenCount": tokens.all_input + tokens.all_output,
        },
    }


def _stream_gemini(turn: Turn, answer_id: str, model: str) -> Events:
    yield "", _write_gemini(turn, answer_id, model)


PROTOCOLS: Mapping[str, Protocol] = {
    protocol.path: protocol
    for protocol in (
        Protocol("messages", "/v1/messages", True, False, _read_anthropic, _write_anthropic, _stream_anthropic),
        Protocol("chat", "/v1/chat/completions", False, True, _read_chat, _write_chat, _stream_chat),
        Protocol("responses", "/v1/responses", False, True, _read_responses, _write_responses, _stream_responses),
        Protocol("gemini", ":generateContent", False, True, _read_gemini, _write_gemini, _stream_gemini),
        Protocol("gemini", ":streamGenerateContent", False, True, _read_gemini, _write_gemini, _stream_gemini),
    )
}
