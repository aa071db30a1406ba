"""Messages of Claude Code: its requests for permission to run tools, our answers to them, and failures of a session."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
NOT_ALLOWED = "not allowed: the agent's settings do not list this tool"


@dataclass(frozen=True)
class CallVerdict:
    """The decision about a call: whether it may run, and with which arguments."""

    #: The reason for a denial; empty if the call may run.
    denied: str = ""
    #: Whether a person or a rule has allowed the call. This overrides the program's own rules.
    is_allowed: bool = False
    #: Replacement for the arguments of the model.
    arguments: Message | None = None


@dataclass(frozen=True)
class SubagentRequest:
    """A request of the program for permission to run a sub-agent's call."""

    call_id: str
    tool_name: str
    arguments: Message
    #: The program's message, which the answer refers to.
    message: Message

    @property
    def request_id(self) -> str:
        return str(self.message.get("request_id"))


def answer_to(request: Message, decision: CallVerdict) -> Message:
    """Return the answer to a hook or a permission request about a call."""
    if request["subtype"] != "can_use_tool":
        return _hook_answer(decision)
    denied = decision.denied or ("" if decision.is_allowed else NOT_ALLOWED)
    if denied:
        return {"behavior": "deny", "message": denied}
    arguments = request.get("input") if decision.arguments is None else decision.arguments
    return {"behavior": "allow", "updatedInput": arguments}


def subagent_request(message: Message) -> SubagentRequest:
    """Return a `control_request` of the program as a request about a sub-agent's call."""
    request = message["request"]
    facts = request.get("input") if isinstance(request.get("input"), dict) else {}
    is_hook = request["subtype"] == "hook_callback"
    name = facts.get("tool_name") if is_hook else request.get("tool_name")
    arguments = facts.get("tool_input") if is_hook else facts
    return SubagentRequest(
        call_id=str(request.get("tool_use_id") or ""),
        tool_name=str(name or ""),
        arguments=arguments if isinstance(arguments, dict) else {},
        message=message,
    )


def _hook_answer(decision: CallVerdict) -> Message:
    """Return the answer of our hook. Without a decision and new arguments, it is empty: the program's rules apply."""
    verdict = "deny" if decision.denied else "allow" if decision.is_allowed else ""
    if not verdict and decision.arguments is None:
        return {}
    output: Message = {"hookEventName": "PreToolUse", "permissionDecision": verdict or "ask"}
    if decision.denied:
        output["permissionDecisionReason"] = decision.denied
    elif decision.arguments is not None:
        output["updatedInput"] = decision.arguments
    return {"hookSpecificOutput": output}


#: Our error types of failed API calls, by Claude Code's names of them.
NAMED_FAILURES = {
    "authentication_failed": "unauthorized",
    "billing_error": "out_of_credits",
    "rate_limit": "rate_limited",
    "invalid_request": "invalid_request",
    "server_error": "server_error",
}
#: Error types that a further attempt would repeat.
FINAL_FAILURES = frozenset({"error_max_turns", "error_max_budget_usd"})
#: Maximum characters of the message and of the details of a failure.
MAX_TEXT = 2_000


class SessionFailed(Exception):
    """The session has failed. `status`: the HTTP status of a failed call of the model's API."""

    def __init__(self, error_type: str, message: str, *, status: int | None = None, details: str = "") -> None:
        super().__init__(message[:MAX_TEXT])
        self.error_type = error_type
        self.status = status
        self.details = details[-MAX_TEXT:]


class SessionMissing(SessionFailed):
    """The program does not know the session to resume."""


def failure_of_result(result: Mapping[str, Any], named: str | None) -> SessionFailed | None:
    """Return the failure that a `result` message reports; None for a success.

    After a failed API call, `subtype` is "success" and `is_error` is true. `named` is then Claude Code's name of the
    error.
    """
    subtype, status = str(result.get("subtype")), result.get("api_error_status")
    if subtype == "success" and result.get("is_error") is not True:
        return None
    texts = [text for text in result.get("errors") or [] if isinstance(text, str)]
    if not texts and isinstance(result.get("result"), str):
        texts = [result["result"]]
    message = "; ".join(text for text in texts if text) or f"the session ended with {subtype}"
    is_status = isinstance(status, int) and not isinstance(status, bool)
    error_type = NAMED_FAILURES.get(named or "", "api_error") if subtype == "success" else subtype[:64]
    return SessionFailed(error_type, message, status=status if is_status else None)


def failure_of_exit(status: int, stderr: str) -> SessionFailed:
    """Return the failure of a program that has ended without a result.

    `status` is its exit status, or the negative number of the signal that ended it.
    """
    details = stderr.strip()
    if "No conversation found with session ID" in details:
        return SessionMissing("session_missing", details)
    if status < 0:
        return SessionFailed("session_killed", f"the program was ended by {_signal_name(-status)}", details=details)
    end = f"the program exited with status {status}" if status else "the program ended"
    text = f"{end} without a result" + (f": {details.splitlines()[-1][:500]}" if details else "")
    return SessionFailed("session_ended", text, details=details)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
