"""Texts that events share with messages: they are stored once, in the message, and joined where an event is read.

A message of a worker never changes, and most events of a step repeat its text: a block of an answer, and the previews
of a message and of a tool's output. Such an event stores the number of characters instead of the text, and the part of
the message that begins with it. It refers to the message, or to the tool call whose result the message is.

The tables of messages and tool calls belong to the package runs, which builds on this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The member of the payload that holds the text, by the type of the event. Not by `EventType`: the models import this,
#: and commands that need no types of events would load them.
MEMBERS: Mapping[str, str] = {
    "llm.text": "text",
    "llm.thinking": "text",
    "message.added": "preview",
    "tool.end": "preview",
}
#: Characters from which a text is shared. Joining a shorter one would cost more than it saves.
MIN_CHARACTERS = 64
#: The name of that member in SQL, and the ID of the message.
_MEMBER = "CASE WHEN {row}.type IN ('llm.text', 'llm.thinking') THEN 'text' ELSE 'preview' END"
_MESSAGE = """CASE WHEN {row}.type = 'tool.end'
    THEN (SELECT c.result_message_id FROM agent_run_tool_calls c WHERE c.id = {row}.ref_id) ELSE {row}.ref_id END"""
_WHOLE_PAYLOAD = {
    "postgresql": """CASE WHEN {row}.text_part IS NULL THEN {row}.payload ELSE jsonb_set({row}.payload, ARRAY[{member}],
        to_jsonb(COALESCE((
            SELECT left(m.content #>> ARRAY['parts', {row}.text_part::text, 'content'],
                ({row}.payload ->> {member})::int)
            FROM agent_run_messages m WHERE m.id = {message}), ''))) END""",
    "sqlite": """CASE WHEN {row}.text_part IS NULL THEN {row}.payload ELSE json_set({row}.payload, '$.' || {member},
        COALESCE((
            SELECT substr(json_extract(m.content, '$.parts[' || {row}.text_part || '].content'), 1,
                json_extract({row}.payload, '$.' || {member}))
            FROM agent_run_messages m WHERE m.id = {message}), '')) END""",
}
#: SQL for a payload with its text. Payloads without a shared text are read as they are stored. While a run is being
#: deleted, its messages may be gone before its events: then the text is empty.
WHOLE_PAYLOAD = {
    vendor: sql.replace("{member}", _MEMBER).replace("{message}", _MESSAGE) for vendor, sql in _WHOLE_PAYLOAD.items()
}


def stored_payload(type_: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload to store for an event whose text lies in a message."""
    member = MEMBERS[type_]
    return {**payload, member: len(payload[member])}
