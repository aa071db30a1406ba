"""The names of all event types."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache


class EventType(StrEnum):
    """The type of an event; its payload class says what is known about it. Senders may also use custom types."""

    RUN_CREATED = "run.created"
    RUN_STARTED = "run.started"
    RUN_PHASE = "run.phase"
    RUN_WAITING = "run.waiting"
    RUN_PAUSED = "run.paused"
    RUN_RESUMED = "run.resumed"
    RUN_RECOVERED = "run.recovered"
    RUN_ROLLED_BACK = "run.rolled_back"
    RUN_SESSION = "run.session"
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_STOPPED = "run.stopped"
    MESSAGE_ADDED = "message.added"
    LLM_TURN_START = "llm.turn.start"
    LLM_TEXT_DELTA = "llm.text.delta"
    LLM_THINKING_DELTA = "llm.thinking.delta"
    LLM_TEXT = "llm.text"
    LLM_THINKING = "llm.thinking"
    LLM_TURN_END = "llm.turn.end"
    LLM_TURN_ABANDONED = "llm.turn.abandoned"
    LLM_USAGE = "llm.usage"
    LLM_USAGE_MOVED = "llm.usage.moved"
    RETRY_SCHEDULED = "retry.scheduled"
    TOOL_START = "tool.start"
    TOOL_OUTPUT = "tool.output"
    TOOL_END = "tool.end"
    TOOL_OUTCOME_RESOLVED = "tool.outcome_resolved"
    HOOK_DECIDED = "hook.decided"
    SAFETY_BLOCK = "safety.block"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_RESOLVED = "approval.resolved"
    COMMAND_RECEIVED = "command.received"
    POLICY_APPLIED = "policy.applied"
    ERROR = "error"
    BUDGET_WARNING = "budget.warning"
    CONTEXT_TRIMMED = "context.trimmed"
    IMPORT_LEFT_OUT = "import.left_out"
    FILE_CHANGED = "file.changed"
    GIT_COMMIT = "git.commit"
    DEPLOY_TRIGGERED = "deploy.triggered"
    DEPLOY_STATUS = "deploy.status"
    HANDOFF = "handoff"
    CHILD_RUN_STARTED = "child_run.started"
    CHILD_RUN_PHASE = "child_run.phase"
    CHILD_RUN_COMPLETED = "child_run.completed"
    FLOW_STARTED = "flow.started"
    FLOW_RESUMED = "flow.resumed"
    FLOW_COMPLETED = "flow.completed"
    NODE_STARTED = "node.started"
    NODE_COMPLETED = "node.completed"
    NODE_FAILED = "node.failed"
    NODE_SKIPPED = "node.skipped"
    EDGE_FIRED = "edge.fired"
    EDGE_SKIPPED = "edge.skipped"
    LOOP_ITERATED = "loop.iterated"


EVENT_TYPES: frozenset[str] = frozenset(member.value for member in EventType)

MAX_TYPE_LENGTH = 128
#: The pattern of custom types, for JSON Schemas too.
CUSTOM_TYPE = r"^x(?:\.[a-z][a-z0-9_]*)+$"
_CUSTOM = re.compile(CUSTOM_TYPE.strip("^$"), re.ASCII)


def is_custom(type_: str) -> bool:
    """Return whether a type is custom: its name begins with `x.`, and its payload may be any object."""
    return len(type_) <= MAX_TYPE_LENGTH and _matches_custom(type_)


@lru_cache(maxsize=1024)
def _matches_custom(type_: str) -> bool:
    return _CUSTOM.fullmatch(type_) is not None
