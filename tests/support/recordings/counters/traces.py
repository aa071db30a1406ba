"""Traces exported by Langfuse. Observations of the type GENERATION are model calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.recordings.counters.counted import Counted, Tokens, dollars, total

Row = dict[str, Any]
#: Role names of the tracing libraries → roles of the API.
ROLES = {"developer": "system", "system": "system", "user": "user", "tool": "tool"}


def langfuse(path: Path) -> list[Counted]:
    """Count a trace. Langfuse computes the cost of each generation, so the cost counts as reported.

    Two libraries may trace the same call, one inside the other; the inner observation is the request. In the recording
    of agno, the inner counts match the raw responses, and the outer ones match none. A request repeats earlier
    messages, so each message counts once. A call without a result in a completed run gets the result "outcome unknown".
    """
    observations = json.loads(path.read_text())["observations"]
    generations = [row for row in observations if row["type"] == "GENERATION"]
    outer = {row["parentObservationId"] for row in generations}
    calls = [row for row in generations if row["id"] not in outer]
    sent = {one for row in calls for one in _sent(row)}
    # Outer spans are included, because agno's inner span lacks their calls.
    asked = {name for row in generations for name in _asked(row["output"])}
    answered = [one for one in sent if one[0] == "tool"]
    costs = [dollars(row["totalCost"]) for row in calls]
    return [
        Counted(
            system=sum(role == "system" for role, _ in sent),
            user=sum(role == "user" for role, _ in sent),
            assistant=len(calls),
            results=len(asked),
            calls=len(asked),
            unanswered=len(asked) - len(answered),
            model_calls=len(calls),
            tokens=total(_tokens(row["usageDetails"]) for row in calls),
            cost=sum((cost for cost in costs if cost is not None), Decimal()),
        )
    ]


def _sent(row: Row) -> Iterator[tuple[str, str]]:
    """Yield the messages of a request that are not answers, as role and identifying text."""
    sent, answer = row["input"], row["output"]
    if isinstance(answer, dict) and answer.get("instructions"):  # The Responses API of OpenAI.
        yield "system", answer["instructions"]
    if isinstance(sent, str):  # OpenLLMetry's text, with a paragraph per message.
        found = re.findall(r"^(developer|system|user|tool): (.*)", sent, re.MULTILINE)
        yield from ((ROLES[role], text) for role, text in found)
    elif isinstance(sent, list):  # the chats of OpenAI and pydantic-ai
        yield from (one for message in sent for one in _chat_message(message))
    elif "contents" in sent:  # Gemini's format.
        yield "system", sent["config"]["system_instruction"]
        parts = [part for message in sent["contents"] if message["role"] == "user" for part in message["parts"]]
        yield from (("tool" if "function_response" in part else "user", json.dumps(part)) for part in parts)
    else:  # The positional arguments of a completion.
        yield from (("user", text) for text in sent["args"])


def _chat_message(message: Row) -> Iterator[tuple[str, str]]:
    if message.get("type") == "function_call_output":
        yield "tool", message["call_id"]
        return
    replies = [part["id"] for part in message.get("parts", ()) if part["type"] == "tool_call_response"]
    yield from (("tool", name) for name in replies)
    if not replies and message.get("role") in ROLES:
        yield ROLES[message["role"]], json.dumps(message)


def _asked(answer: Any) -> Iterator[str]:
    """Yield the IDs of the tool calls in an answer, in any vendor's format."""
    if isinstance(answer, list):
        for each in answer:
            yield from _asked(each)
    elif isinstance(answer, dict):
        if answer.get("function_call"):
            yield json.dumps(answer["function_call"])
        elif answer.get("type") in ("function_call", "function", "tool_call"):
            yield answer.get("call_id") or answer["id"]
        else:
            for name in ("choices", "message", "tool_calls", "output", "content", "parts"):
                yield from _asked(answer.get(name))


def _tokens(details: dict[str, int]) -> Tokens:
    return Tokens(
        input=details["input"],
        cached=details.get("prompt_details.cache_read", 0),
        output=details["output"],
        reasoning=details.get("completion_details.reasoning", 0),
    )
