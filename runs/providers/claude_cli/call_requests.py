"""Requests of the program about calls of tools, and the answers to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
NOT_ALLOWED = "not allowed: the agent's settings do not list this tool"


@dataclass(frozen=True)
class CallVerdict:
    """The decision on a call: whether it may run, and with which arguments."""

    #: The reason for a denial; empty if the call may run.
    denied: str = ""
    #: Whether a person or a rule has allowed it. This overrides the program's own rules.
    is_allowed: bool = False
    #: Replacement for the model's arguments.
    arguments: Message | None = None


@dataclass(frozen=True)
class SubagentRequest:
    """A request of the program for permission to run a sub-agent's call."""

    call_id: str
    tool_name: str
    arguments: Message
    message: Message

    @property
    def request_id(self) -> str:
        return str(self.message.get("request_id"))


def answer_to(request: Message, decision: CallVerdict) -> Message:
    """Return the answer to a request. Without an explicit permission, the program's own rules decide."""
    if request["subtype"] != "can_use_tool":
        return _hook_answer(decision)
    denied = decision.denied or ("" if decision.is_allowed else NOT_ALLOWED)
    if denied:
        return {"behavior": "deny", "message": denied}
    given = request.get("input") if decision.arguments is None else decision.arguments
    return {"behavior": "allow", "updatedInput": given}


def subagent_request(message: Message) -> SubagentRequest:
    """Return a `control_request` as a request about a sub-agent's call."""
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
    """Return our hook's answer about a call. Without a decision or new arguments, the program's own rules apply."""
    verdict = "deny" if decision.denied else "allow" if decision.is_allowed else ""
    if not verdict and decision.arguments is None:
        return {}
    output: Message = {"hookEventName": "PreToolUse", "permissionDecision": verdict or "ask"}
    if decision.denied:
        output["permissionDecisionReason"] = decision.denied
    elif decision.arguments is not None:
        output["updatedInput"] = decision.arguments
    return {"hookSpecificOutput": output}
