"""Reads the log events of coding agents: Claude Code, Codex CLI and Gemini CLI.

Each event names its session. It has the text of a prompt, an answer or an output only if the user enables that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from runs.agents.prices import MAX_TOKENS
from runs.external.event_input import RejectedEvent, read_time
from runs.external.otlp.attribute_names import first, label
from runs.external.otlp.received import ReceivedLog, without_far_future
from runs.external.otlp.span_messages import decoded
from runs.providers.price_tiers import details_of

#: The kinds of events. `NOTE`: an event that is not filed under a run.
PROMPT, ANSWER, ANSWER_TEXT, TOOL_RESULT = "log:prompt", "log:answer", "log:text", "log:result"
TOOL_REFUSED, FAILURE, NOTE = "log:refused", "log:error", "log:note"
#: The name of the program → the prefix of its events, and the attributes that name its session.
_PROGRAMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "claude-code": ("claude_code.", ("session.id",)),
    "codex": ("codex.", ("conversation.id",)),
    "gemini-cli": ("gemini_cli.", ("session.id",)),
}
_KINDS = {
    "claude_code.user_prompt": PROMPT,
    "claude_code.api_request": ANSWER,
    "claude_code.assistant_response": ANSWER_TEXT,
    "claude_code.api_error": FAILURE,
    "claude_code.tool_result": TOOL_RESULT,
    "codex.user_prompt": PROMPT,
    "codex.tool_result": TOOL_RESULT,
    "gemini_cli.user_prompt": PROMPT,
    "gemini_cli.api_response": ANSWER,
    "gemini_cli.api_error": FAILURE,
    "gemini_cli.tool_call": TOOL_RESULT,
}
#: Decisions that refuse a tool call.
_REFUSALS = {"reject", "denied", "abort"}
#: The kind of the stream event of Codex that has the usage.
_COMPLETED = "response.completed"
#: Values in place of a text that the user has not enabled.
_WITHHELD = ("", "[REDACTED]", "<REDACTED>")
_MAX_SESSION = 128
_USAGE = {
    "input_tokens": ("input_tokens", "input_token_count"),
    "output_tokens": ("output_tokens", "output_token_count"),
    "cache_read_tokens": ("cache_read_tokens", "cached_token_count", "cached_content_token_count"),
    "cache_write_tokens": ("cache_creation_tokens",),
    "reasoning_tokens": ("reasoning_token_count", "thoughts_token_count"),
}
_TOOL = ("tool_name", "function_name")
_CALL = ("tool_use_id", "call_id")
_ARGUMENTS = ("tool_input", "tool_parameters", "arguments", "function_args")
_OUTPUT = ("output", "tool_output", "error", "error.message")
_ERROR = ("error", "error.message", "error_message")


class LogFacts(TypedDict, total=False):
    """The facts in a log event."""

    event: str
    program: str
    session: str
    #: The position in the session, for programs that number their events.
    number: int
    model: str
    text: str
    request_id: str
    usage: dict[str, int]
    #: The service tier in the answer (runs.providers.price_tiers).
    tier: dict[str, str]
    cost: float | str
    duration_ms: int
    tool: str
    call_id: str
    arguments: Any
    output: Any
    has_failed: bool
    error_type: str


def name_of(record: ReceivedLog) -> str:
    """Return the full name of an event; empty if its program is unknown.

    The name is the event name of the record, its body, or an attribute. Claude Code may omit its prefix there.
    """
    for value in (record.name, record.body, record.attributes.get("event.name")):
        if isinstance(value, str) and value.startswith(tuple(begin for begin, _ in _PROGRAMS.values())):
            return value
    short, service = record.attributes.get("event.name"), record.resource.get("service.name")
    return f"claude_code.{short}" if isinstance(short, str) and service == "claude-code" else ""


def key_of(record: ReceivedLog) -> str | None:
    """Return the program and the session of an event; None if either is unknown."""
    program = _program(name_of(record))
    if program is None:
        return None
    session = label({**record.resource, **record.attributes}, _PROGRAMS[program][1], _MAX_SESSION)
    return f"{program}:{session}" if session else None


def kind_of_log(record: ReceivedLog) -> str:
    """Return the kind of an event."""
    name, attributes = name_of(record), record.attributes
    if name == "codex.sse_event" and attributes.get("event.kind") == _COMPLETED:
        return FAILURE if first(attributes, _ERROR) else ANSWER
    if name in ("codex.api_request", "codex.sse_event", "codex.websocket_event") and first(attributes, _ERROR):
        return FAILURE
    if name.endswith(".tool_decision") and attributes.get("decision") in _REFUSALS:
        return TOOL_REFUSED
    if name == "gemini_cli.tool_call" and attributes.get("decision") == "reject":
        return TOOL_REFUSED
    return _KINDS.get(name, NOTE)


def log_facts(record: ReceivedLog) -> LogFacts:
    """Return the facts in an event."""
    name, attributes, kind = name_of(record), record.attributes, kind_of_log(record)
    program = _program(name) or ""
    facts = LogFacts(event=name[:128], program=program)
    facts["session"] = label({**record.resource, **attributes}, _PROGRAMS[program][1], _MAX_SESSION)
    number = _number(attributes.get("event.sequence"))
    if number is not None:
        facts["number"] = number
    model = label(attributes, ("model",))
    if model:
        facts["model"] = model
    facts["request_id"] = label(attributes, ("request_id",))
    if kind in (PROMPT, ANSWER, ANSWER_TEXT):
        facts |= _conversation_facts(attributes, program)
    elif kind in (TOOL_RESULT, TOOL_REFUSED):
        facts |= _call_facts(attributes)
    elif kind == FAILURE:
        facts["text"] = str(first(attributes, _ERROR) or "the request failed")
        facts["error_type"] = label(attributes, ("error_type", "error.type")) or _status_of(attributes)
    took = _number(attributes.get("duration_ms"))
    if took is not None and kind not in (FAILURE, NOTE):
        facts["duration_ms"] = took
    return facts


def time_of(record: ReceivedLog) -> datetime | None:
    """Return the time of an event, from the program's own attribute or from the record."""
    value = record.attributes.get("event.timestamp")
    try:
        own = without_far_future(read_time(value)) if isinstance(value, str) else None
    except RejectedEvent:
        own = None
    return own or record.at


def _program(name: str) -> str | None:
    return next((program for program, (begin, _) in _PROGRAMS.items() if name.startswith(begin)), None)


def _conversation_facts(attributes: Mapping[str, Any], program: str) -> LogFacts:
    """Return the facts about a prompt or an answer."""
    text = first(attributes, ("prompt", "response", "response_text"))
    facts = LogFacts(text="" if not isinstance(text, str) or text in _WITHHELD else text)
    counts = {field: _number(first(attributes, known)) for field, known in _USAGE.items()}
    usage = {field: count for field, count in counts.items() if count is not None}
    if program == "claude-code":
        # Its input tokens do not include the cached tokens.
        cached = usage.get("cache_read_tokens", 0) + usage.get("cache_write_tokens", 0)
        usage["input_tokens"] = usage.get("input_tokens", 0) + cached
    elif program == "gemini-cli":
        # Its output tokens do not include the thoughts.
        usage["output_tokens"] = usage.get("output_tokens", 0) + usage.get("reasoning_tokens", 0)
    cost = attributes.get("cost_usd")
    facts["usage"] = usage
    if tier := details_of(attributes):
        facts["tier"] = tier
    if isinstance(cost, int | float | str) and not isinstance(cost, bool):
        facts["cost"] = cost
    return facts


def _call_facts(attributes: Mapping[str, Any]) -> LogFacts:
    """Return the facts about a tool call that has ended or was refused."""
    return LogFacts(
        tool=label(attributes, _TOOL, 256) or "tool",
        call_id=label(attributes, _CALL, 240),
        arguments=decoded(first(attributes, _ARGUMENTS)),
        output=first(attributes, _OUTPUT) or "",
        has_failed=str(attributes.get("success", "true")).lower() == "false",
    )


def _status_of(attributes: Mapping[str, Any]) -> str:
    """Return the HTTP status of a failed request as an error type, such as `http_429`; "error" without a status."""
    status = first(attributes, ("status_code", "http.response.status_code"))
    return f"http_{status}" if isinstance(status, int | str) and str(status).isalnum() else "error"


def _number(value: Any) -> int | None:
    """Return a count, which programs also write as text or as a fraction; None for an invalid value."""
    try:
        number = round(float(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= MAX_TOKENS else None
