"""The names of the agent dialect, and those of the log that they stand for. Both directions read these tables.

The dialect has camel case names and times in milliseconds. The fields of `agent:` events are flat in the event. Other
events keep theirs in `payload`, because some have names of the envelope.
"""

from __future__ import annotations

from collections.abc import Mapping

from timeline.events import EventType

#: Dialect type → type. `agent:tool` also stands for the start of the call.
TYPES: dict[str, str] = {
    "agent:start": EventType.RUN_STARTED,
    "agent:text": EventType.LLM_TEXT,
    "agent:text:delta": EventType.LLM_TEXT_DELTA,
    "agent:thinking": EventType.LLM_THINKING,
    "agent:thinking:delta": EventType.LLM_THINKING_DELTA,
    "agent:tool": EventType.TOOL_END,
    "agent:error": EventType.ERROR,
    "agent:complete": EventType.RUN_COMPLETED,
    "flow:started": EventType.FLOW_STARTED,
    "flow:resumed": EventType.FLOW_RESUMED,
    "flow:completed": EventType.FLOW_COMPLETED,
    "node:started": EventType.NODE_STARTED,
    "node:completed": EventType.NODE_COMPLETED,
    "node:failed": EventType.NODE_FAILED,
    "node:skipped": EventType.NODE_SKIPPED,
    "edge:fired": EventType.EDGE_FIRED,
    "edge:skipped": EventType.EDGE_SKIPPED,
    "edge:iterated": EventType.LOOP_ITERATED,
    "command:received": EventType.COMMAND_RECEIVED,
    "child_job.started": EventType.CHILD_RUN_STARTED,
}
#: Verbs in the present tense, which runners also send, and what others call a failure.
_VERBS = {
    "start": "started",
    "resume": "resumed",
    "complete": "completed",
    "fail": "failed",
    "error": "failed",
    "skip": "skipped",
    "fire": "fired",
    "iterate": "iterated",
}
#: Accepted for the iteration of a loop, which is read as that of its edge.
_LOOP = "loop:iterated"
TOOL, NODE_ERROR = "agent:tool", "node:error"
#: What a type of the log is called in the dialect. Types that are not here keep their name.
DIALECT_TYPES: Mapping[str, str] = {type_: name for name, type_ in TYPES.items()}

#: Dialect type → its fields with another name in the log.
FIELDS: dict[str, dict[str, str]] = {
    "agent:text": {"content": "text"},
    "agent:text:delta": {"content": "text"},
    "agent:thinking": {"content": "text"},
    "agent:thinking:delta": {"content": "text"},
    "agent:tool": {"toolInput": "arguments", "toolOutput": "output", "toolCallId": "callId", "toolUseId": "callId"},
    "agent:error": {"message": "error"},
    "agent:complete": {"totalCostUsd": "costUsd", "numTurns": "steps"},
    "node:started": {"childRunId": "runId"},
    "node:completed": {"childRunId": "runId"},
    "node:failed": {"childRunId": "runId"},
    "child_job.started": {"childRunId": "runId", "childJobId": "runId"},
    "edge:fired": {"from": "source", "to": "target", "edgeId": "edge"},
    "edge:skipped": {"from": "source", "to": "target", "edgeId": "edge"},
    "edge:iterated": {"edgeId": "edge"},
    "command:received": {"command": "type"},
}

#: Dialect error type → error type of the log.
ERROR_TYPES: dict[str, str] = {
    "error_tool_use": "tool_error",
    "error_max_turns": "max_turns",
    "error_user": "invalid_request",
    "network_error": "no_internet",
    "rate_limit": "rate_limited",
}
#: The dialect's word for error types of the log; the others keep their name. Several mean the same to a reader.
DIALECT_ERROR_TYPES: Mapping[str, str] = {
    **{type_: name for name, type_ in ERROR_TYPES.items()},
    **dict.fromkeys(("error_max_turns", "max_steps"), "error_max_turns"),
    "timeout": "network_error",
}


def dialect_type(sent: object) -> str | None:
    """Return the type of this dialect that a sent type means; None if it is of another vocabulary."""
    if not isinstance(sent, str):
        return None
    if sent in TYPES:
        return sent
    family, colon, verb = sent.partition(":")
    if not colon:
        return None
    name = f"{family}:{_VERBS.get(verb, verb)}"
    if name == _LOOP:
        return DIALECT_TYPES[EventType.LOOP_ITERATED]
    return name if name in TYPES else None
