"""The conversation of AG-UI messages as a client stores it, for clients that have not received them."""

from __future__ import annotations

from collections.abc import Iterable

from timeline.dialects.ag_ui_blocks import Message


def conversation_of(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a conversation in order, with the IDs used in the stream."""
    conversation: dict[str, Message] = {}
    calls: dict[str, Message] = {}
    for message in messages:
        match message:
            case {"type": "RUN_STARTED", "input": {"messages": sent}}:
                conversation |= {each["id"]: each for each in sent}
            case {"type": "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START", "messageId": name, "role": role}:
                conversation.setdefault(name, {"id": name, "role": role, "content": ""})
            case {"type": "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT", "messageId": name, "delta": delta}:
                conversation[name]["content"] += delta
            case {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": tool}:
                calls[call_id] = {"id": call_id, "type": "function", "function": {"name": tool, "arguments": ""}}
                parent = message.get("parentMessageId") or call_id
                holder = conversation.setdefault(parent, {"id": parent, "role": "assistant"})
                holder.setdefault("toolCalls", []).append(calls[call_id])
            case {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta}:
                calls[call_id]["function"]["arguments"] += delta
            case {"type": "TOOL_CALL_RESULT", "messageId": name, "toolCallId": call_id, "content": content}:
                conversation[name] = {"id": name, "role": "tool", "toolCallId": call_id, "content": content}
    return list(conversation.values())
