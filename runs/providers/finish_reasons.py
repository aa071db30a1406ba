"""Why a model ended an answer: the reasons of all providers under five names, and which answers are not whole.

The names come from pydantic-ai and from the GenAI conventions of OpenTelemetry.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any

from pydantic_ai.messages import FinishReason, ModelResponse, ToolCallPart

LENGTH: FinishReason = "length"
CONTENT_FILTER: FinishReason = "content_filter"
ERROR: FinishReason = "error"
_CONTEXT_FULL = ("model_context_window_exceeded", "context_window_exceeded", "model_length")
#: Name → the reasons of providers and programs that mean it, in lower case with underscores.
_REASONS: dict[FinishReason, tuple[str, ...]] = {
    "stop": (
        "stop",
        "end_turn",
        "stop_sequence",
        "completed",
        "complete",
        "compaction",
        "eos",
        "eos_token",
        "end",
        "end_of_text",
    ),
    "tool_call": ("tool_call", "tool_calls", "tool_use", "function_call", "function_calls"),
    "length": (
        *("length", "max_tokens", "max_output_tokens", "max_length", "token_limit", "incomplete", *_CONTEXT_FULL),
        # Google's limit of a single request, and Anthropic's limit of the vendor's own tools in one turn.
        *("continuation", "pause_turn"),
    ),
    "content_filter": (
        *("content_filter", "content_filtered", "filtered", "refusal", "refused", "safety", "recitation", "blocklist"),
        *("prohibited_content", "spii", "model_armor", "image_safety", "image_prohibited_content", "sensitive"),
        *("guardrail_intervened", "moderation", "error_toxic"),
    ),
    "error": (
        *("error", "failed", "cancelled", "network_error", "timeout", "insufficient_system_resource", "error_limit"),
        *("malformed_function_call", "malformed_tool_use", "malformed_model_output", "unexpected_tool_call"),
        *("language", "no_image"),
    ),
}
_NAMES: dict[str, FinishReason] = {reason: name for name, reasons in _REASONS.items() for reason in reasons}
#: Maximum characters of a provider's reason, and of the explanation of a refusal.
MAX_REASON, MAX_EXPLANATION = 64, 500


class AnswerFault(StrEnum):
    """Why an answer does not end a run."""

    CUT = "cut"  # the model reached a limit of tokens
    REFUSED = "refused"  # the model refused, or a filter of the provider stopped it


_FAULTS: dict[FinishReason | None, AnswerFault] = {LENGTH: AnswerFault.CUT, CONTENT_FILTER: AnswerFault.REFUSED}


def named(reason: object) -> FinishReason | None:
    """Return the name of a provider's reason, such as `length` for `MAX_TOKENS`; None if it is unknown."""
    if not isinstance(reason, str):
        return None
    word = re.sub(r"[\s.-]", "_", reason[:MAX_REASON].strip().lower())
    return _NAMES.get(word.removeprefix("finishreason_").removeprefix("finish_reason_"))


def reason_of(answer: ModelResponse) -> FinishReason | None:
    """Return the finish reason of an answer; None if its provider sent none, or an unknown one."""
    if answer.finish_reason is not None:
        return answer.finish_reason
    reported = _reported(answer)
    if reported == "OTHER" and str(answer.provider_name).startswith("google"):
        return CONTENT_FILTER  # Google blocks answers for reasons that it does not give
    return named(reported)


def fault_of(answer: ModelResponse) -> AnswerFault | None:
    """Return why an answer does not end a run; None for a whole answer."""
    return _FAULTS.get(reason_of(answer))


def why_not_run(answer: ModelResponse, call: ToolCallPart) -> str:
    """Return, for the model, why a call of an answer must not run; empty if it may.

    Calls of a refused answer are not run. In a cut answer, the arguments of the last call may be incomplete.
    """
    fault = fault_of(answer)
    if fault is AnswerFault.REFUSED:
        return "Not run: the provider stopped the answer that requested this call."
    if fault is AnswerFault.CUT and not _is_whole(call, is_last=call is answer.parts[-1]):
        return (
            "Not run: the answer was cut off at the token limit before the arguments of this call were complete. "
            "Request it again with shorter arguments, or in several calls."
        )
    return ""


def explain(answer: ModelResponse) -> str:
    """Return, for people, why an answer is not whole, with the provider's own reason and explanation."""
    reported, details = _reported(answer), answer.provider_details or {}
    if fault_of(answer) is AnswerFault.CUT:
        what = _cause_of_cut(reported)
    else:
        is_refusal = bool(details.get("refusal")) or named(reported) is None or "refus" in reported.lower()
        what = "The model refused to answer" if is_refusal else "A filter of the provider stopped the answer"
    text = f"{what} ({reported})" if reported and reported.isprintable() else what
    explanation = details.get("refusal")
    text += f": {explanation[:MAX_EXPLANATION]}" if isinstance(explanation, str) and explanation else "."
    not_run = sorted({call.tool_name for call in answer.tool_calls if why_not_run(answer, call)})
    return f"{text} Not run: {', '.join(not_run)}." if not_run else text


def _cause_of_cut(reported: str) -> str:
    word = reported.lower()
    if word in _CONTEXT_FULL:
        return "The answer was cut off because the context window of the model is full"
    if word == "pause_turn":
        return "The provider paused the answer"
    return "The answer was cut off because the model reached its token limit"


def _reported(answer: ModelResponse) -> str:
    """Return the provider's own reason; empty if it is not known."""
    reason: Any = (answer.provider_details or {}).get("finish_reason")
    return reason[:MAX_REASON] if isinstance(reason, str) else ""


def _is_whole(call: ToolCallPart, *, is_last: bool) -> bool:
    """Return whether the arguments of a call are complete. Only the last call can have none because of the cut."""
    if not call.args:
        return not is_last
    if not isinstance(call.args, str):
        return True
    try:
        return isinstance(json.loads(call.args), dict)
    except (ValueError, RecursionError):
        return False
