"""Phrases for the reason codes of statuses, attempts and events. Data contains the codes; pages display the phrases."""

from __future__ import annotations

import re

OPERATOR = "operator"
#: Reasons why the recording of an external run ended: no event arrived for days, or an operator stopped it.
ABANDONED, RECORDING_STOPPED = "abandoned", "recording_stopped"
#: The reason why an abandoned run is running again.
REOPENED = "reopened"

#: A phrase follows a status ("paused, by an operator") or is in parentheses ("Paused (step limit reached)").
REASON_LABELS: dict[str, str] = {
    # Pauses
    "max_steps": "step limit reached",
    OPERATOR: "by an operator",
    "escalated": "decision required",
    "log_limit": "event limit reached",
    "budget": "budget used up",
    "error": "after an error",
    "fixture_exhausted": "recording ended",
    "poison_step": "step kills its worker",
    "engine_error": "error inside agentops",
    "answer_cut": "answer cut off",
    "answer_refused": "answer refused",
    # Waits
    "approval": "for approval",
    "unknown_tool": "for the outcome of a tool call",
    "input": "for an answer",
    "children": "for child runs",
    "cooldown": "for the next attempt",
    "timer": "for its timer",
    "signal": "for a signal",
    "on_error": "after an error",
    "on_dead": "after its worker died",
    "on_cut": "after a cut answer",
    "on_refused": "after a refused answer",
    "retry_alone": "to be retried alone",
    # Returns to the queue
    "answered": "question answered",
    "approval_decided": "approval decided",
    "cooldown_over": "next attempt is due",
    "outcome_resolved": "tool call resolved",
    "restored": "database restored",
    "signal_received": "signal received",
    "slice_over": "time slice used up",
    "timed_out": "time limit reached",
    "timer_over": "timer elapsed",
    # Stops
    ABANDONED: "abandoned",
    RECORDING_STOPPED: "recording stopped",
    "hook": "by a hook",
    "repeated_calls": "repeated tool calls",
    "session_ended": "its session ended",
    # Ends of attempts, abandoned model calls, recoveries and rollbacks
    "continued": "continued",
    REOPENED: "reopened by a further event",
    "crash": "worker died",
    "died": "worker died",
    "died_alone": "worker died without other runs",
    "fenced": "another worker took over",
    "killed": "worker stopped by an operator",
    "lease_expired": "lease expired",
    "stopped": "stop requested",
    "unreadable": "message cannot be read",
    "worker_ending": "worker shut down",
    "worker_lost": "worker lost",
    # Errors
    "answer_too_long": "answer too long",
    "asked": "question of the agent",
    "context_too_long": "context too long",
    "error_max_turns": "step limit reached",
    "idle": "no result reported",
    "incomplete_answer": "incomplete response",
    "invalid_request": "invalid request",
    "max_turns": "step limit reached",
    "missing_key": "missing API key",
    "missing_library": "missing library",
    "no_internet": "provider not reachable",
    "out_of_credits": "out of credits",
    "overloaded": "provider overloaded",
    "rate_limited": "rate limited",
    "server_error": "provider error",
    "timeout": "timeout",
    "too_many_calls": "too many tool calls",
    "tool_error": "tool error",
    "unauthorized": "unauthorized",
    "unknown_model": "unknown model",
    "unusable_agent": "unusable agent",
    "unusable_model": "unusable model",
    "user_cancelled": "cancelled by a person",
    "worker_died": "worker died",
}
#: Phrases for the finish reasons of answers that are not whole.
FINISH_LABELS = {"length": "cut off", "content_filter": "refused", "error": "error"}
_CODE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")


def finish_text(reason: str) -> str:
    """Return a finish reason for display: with its phrase if the answer is not whole."""
    label = FINISH_LABELS.get(reason)
    return f"{reason}: {label}" if label and label != reason else reason


def reason_label(code: str) -> str:
    """Return the phrase for a reason code; an unknown code with spaces for underscores; other text unchanged."""
    label = REASON_LABELS.get(code)
    return label or (code.replace("_", " ") if _CODE.fullmatch(code) else code)
