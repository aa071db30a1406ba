"""Requests of the program about calls of tools, and the answers to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
NOT_ALLOWED = "not allowed: the agent's settings do not list this tool"


@dataclass(frozen=True)
class CallVerdict:
    """What was decided of a call: whether it may run, and with which arguments."""

    #: Why it may not run; empty if it may.
    denied: str = ""
    #: A person or a rule has allowed it, whatever the program's own rules say.
    is_allowed: bool = False
    #: These replace those of the model.
    arguments: Message | None = None


@dataclass(frozen=True)
class SubagentRequest:
    """The program asks whether a sub-agent's call may run."""

    call_id: str
    tool_name: str
    arguments: Message
    message: Message

    @property
    def request_id(self) -> str:
        return str(self.message.get("request_id"))


def answer_to(request: Message, decision: CallVerdict) -> Message:
    """Return the answer to a request. The program's own rules decide of a call that nobody has allowed."""
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
    """Return what our hook says of a call. Without a decision and new arguments, the program's own rules go on."""
    verdict = "deny" if decision.denied else "allow" if decision.is_allowed else ""
    if not verdict and decision.arguments is None:
        return {}
    output: Message = {"hookEventName": "PreToolUse", "permissionDecision": verdict or "ask"}
    if decision.denied:
        output["permissionDecisionReason"] = decision.denied
    elif decision.arguments is not None:
        output["updatedInput"] = decision.arguments
    return {"hookSpecificOutput": output}
