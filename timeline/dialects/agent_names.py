"""Names of the agent dialect and the corresponding names of the log. Both directions read these tables.

The dialect has camel case names and times in milliseconds. Fields of `agent:` events are flat in the event. Other
events keep their fields in `payload`, because some have the same names as fields of the envelope.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from timeline.events import EventType

#: Dialect type → log type. `agent:tool` also represents the start of the call.
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
    "child_job.phase": EventType.CHILD_RUN_PHASE,
    "child_job.completed": EventType.CHILD_RUN_COMPLETED,
}
#: Types for child runs: `child_job.` and a word. These words end the child run, with a status.
CHILD_WORD = r"^child_job\.([a-z][a-z0-9_.]{0,63})$"
_CHILD = re.compile(CHILD_WORD.strip("^$"), re.ASCII)
CHILD_ENDS = {
    "completed": "completed",
    **dict.fromkeys(("failed", "error"), "failed"),
    **dict.fromkeys(("stopped", "cancelled", "canceled"), "stopped"),
}
CHILD_STARTED, CHILD_PHASE, CHILD_COMPLETED = "child_job.started", "child_job.phase", "child_job.completed"
#: Present tense verbs, which runners also send, and other names for a failure.
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
#: An alternative type for an iteration of a loop; translated like the event of its edge.
_LOOP = "loop:iterated"
TOOL, NODE_ERROR = "agent:tool", "node:error"
#: Log type → dialect type. Types that are not listed keep their name.
DIALECT_TYPES: Mapping[str, str] = {type_: name for name, type_ in TYPES.items()}

#: Dialect type → its fields that have another name in the log.
FIELDS: dict[str, dict[str, str]] = {
    "agent:text": {"content": "text"},
    "agent:text:delta": {"content": "text"},
    "agent:thinking": {"content": "text"},
    "agent:thinking:delta": {"content": "text"},
    "agent:tool": {
        **dict.fromkeys(("toolInput", "args", "input"), "arguments"),
        **dict.fromkeys(("toolOutput", "result"), "output"),
        **dict.fromkeys(("toolCallId", "toolUseId"), "callId"),
    },
    "agent:error": {"message": "error"},
    "agent:complete": {"totalCostUsd": "costUsd", "numTurns": "steps"},
    "node:started": {"childRunId": "runId"},
    "node:completed": {"childRunId": "runId"},
    "node:failed": {"childRunId": "runId"},
    **dict.fromkeys(
        (CHILD_STARTED, CHILD_PHASE, CHILD_COMPLETED), dict.fromkeys(("childRunId", "childJobId", "jobId"), "runId")
    ),
    "edge:fired": {"from": "source", "to": "target", "edgeId": "edge"},
    "edge:skipped": {"from": "source", "to": "target", "edgeId": "edge"},
    "edge:iterated": {"edgeId": "edge"},
    "command:received": {"command": "type"},
}

#: Dialect error type → the log's error types for it. A received dialect type is stored as the first one. Other error
#: types have the same name in both.
ERROR_TYPES: dict[str, tuple[str, ...]] = {
    "error_tool_use": ("tool_error",),
    "error_max_turns": ("max_turns", "max_steps", "error_max_turns"),
    "error_user": ("user_cancelled",),
    "network_error": ("no_internet", "timeout"),
    "rate_limit": ("rate_limited",),
}
STORED_ERROR_TYPES: Mapping[str, str] = {name: types[0] for name, types in ERROR_TYPES.items()}
DIALECT_ERROR_TYPES: Mapping[str, str] = {type_: name for name, types in ERROR_TYPES.items() for type_ in types}


def dialect_type(sent: object) -> str | None:
    """Return the dialect type for a received type; None for types of another vocabulary."""
    if not isinstance(sent, str):
        return None
    if sent in TYPES:
        return sent
    if (word := child_word(sent)) is not None:
        return CHILD_COMPLETED if word in CHILD_ENDS else CHILD_PHASE
    family, colon, verb = sent.partition(":")
    if not colon:
        return None
    name = f"{family}:{_VERBS.get(verb, verb)}"
    if name == _LOOP:
        return DIALECT_TYPES[EventType.LOOP_ITERATED]
    return name if name in TYPES else None


def child_word(sent: object) -> str | None:
    """Return the word for a child run in a type, such as "progress"; None for other types."""
    match = _CHILD.fullmatch(sent) if isinstance(sent, str) else None
    return match[1] if match else None


def error_type(type_: object) -> str:
    """Return the dialect name of a log error type."""
    return DIALECT_ERROR_TYPES.get(str(type_), str(type_)) if type_ else "error"
