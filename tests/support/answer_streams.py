"""Streams of model answers in the three protocols, with any end: whole, cut off or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.recorded_vendor import Answer

End = Literal["whole", "cut", "refused"]
Json = dict[str, Any]
#: The reason of each end, in the words of the protocol. The Responses API marks a whole answer by its status.
REASONS: dict[str, dict[End, str]] = {
    "anthropic": {"whole": "end_turn", "cut": "max_tokens", "refused": "refusal"},
    "chat": {"whole": "stop", "cut": "length", "refused": "content_filter"},
    "responses": {"whole": "completed", "cut": "max_output_tokens", "refused": "content_filter"},
}
#: The explanation of a refusal, in the protocols that have one.
EXPLANATION = "It may do harm."


@dataclass(frozen=True)
class Reply:
    """An answer of the model."""

    text: str = ""
    thinking: str = ""
    #: The ID, the tool and the raw arguments of each call.
    calls: tuple[tuple[str, str, str], ...] = ()
    end: End = "whole"


def stream(protocol: str, answer: Reply) -> Answer:
    """Return the answer as the stream of a protocol."""
    events = {"anthropic": _anthropic, "chat": _chat, "responses": _responses}[protocol](answer)
    return Answer("".join(events).encode())


def _named(events: list[Json]) -> Iterator[str]:
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def _anthropic(answer: Reply) -> Iterator[str]:
    used = {"input_tokens": 3, "output_tokens": 2}
    message: Json = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "claude-sonnet-4-6"}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": used}
    blocks: list[tuple[Json, list[Json]]] = []
    if answer.thinking:
        # A thought that was cut off has no signature.
        blocks.append(({"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": answer.thinking}]))
    if answer.text:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": answer.text}]))
    for call_id, tool, arguments in answer.calls:
        deltas = [{"type": "input_json_delta", "partial_json": arguments}] if arguments else []
        blocks.append(({"type": "tool_use", "id": call_id, "name": tool, "input": {}}, deltas))
    events: list[Json] = [{"type": "message_start", "message": message}]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    reason = "tool_use" if answer.calls and answer.end == "whole" else REASONS["anthropic"][answer.end]
    details = {"stop_details": {"type": "refusal", "category": "cyber", "explanation": EXPLANATION}}
    delta = {"stop_reason": reason, **(details if answer.end == "refused" else {})}
    return _named([*events, {"type": "message_delta", "delta": delta, "usage": used}, {"type": "message_stop"}])


def _chat(answer: Reply) -> Iterator[str]:
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    deltas: list[Json] = [{"content": answer.text}] if answer.text else []
    for index, (call_id, tool, arguments) in enumerate(answer.calls):
        function = {"name": tool, "arguments": arguments}
        deltas.append({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
    reason = "tool_calls" if answer.calls and answer.end == "whole" else REASONS["chat"][answer.end]
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
    return iter([*(f"data: {json.dumps(frame | chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"])


def _responses(answer: Reply) -> Iterator[str]:
    frame: Json = {"id": "r", "object": "response", "created_at": 1, "model": "gpt-5", "status": "in_progress"}
    frame |= {"output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    is_whole, events, output = answer.end == "whole", list[Json](), list[Json]()
    state = "completed" if is_whole else "incomplete"
    if answer.thinking:
        # A thought that was cut off has no summary yet.
        item: Json = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAAAA"}
        events += _item(len(output), item, item)
        output.append(item)
    if answer.text:
        begun: Json = {"id": "i", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        place = {"item_id": "i", "output_index": len(output), "content_index": 0}
        done = begun | {"status": state, "content": [part]}
        delta = {"type": "response.output_text.delta", **place, "delta": answer.text, "logprobs": []}
        events += _item(len(output), begun, done, delta)
        output.append(done)
    for call_id, tool, arguments in answer.calls:
        begun = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": tool, "arguments": ""}
        place = {"item_id": f"fc_{call_id}", "output_index": len(output)}
        delta = {"type": "response.function_call_arguments.delta", **place, "delta": arguments}
        done = begun | {"arguments": arguments, "status": "completed"}
        events += _item(len(output), begun, done, *([delta] if arguments else []))
        output.append(done)
    counts = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    counts |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    ended = frame | {"status": state, "output": output, "usage": counts}
    if not is_whole:
        ended |= {"incomplete_details": {"reason": REASONS["responses"][answer.end]}}
    all_events = [{"type": "response.created", "response": frame}, *events]
    all_events.append({"type": f"response.{state}", "response": ended})
    return _named([event | {"sequence_number": number} for number, event in enumerate(all_events)])


def _item(index: int, begun: Json, done: Json, *deltas: Json) -> list[Json]:
    """Return the events of an output item."""
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *deltas,
        {"type": "response.output_item.done", "output_index": index, "item": done},
    ]


def conversation(protocol: str, body: Json) -> list[Json]:
    """Return the conversation in a request, without instructions."""
    items = body["input" if protocol == "responses" else "messages"]
    return [item for item in items if item.get("role") not in ("system", "developer")]
