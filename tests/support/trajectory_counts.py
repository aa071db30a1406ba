"""Counts the contents of recorded trajectories and traces directly from their formats.

The formats are ATIF and those of SWE-agent, mini-swe-agent, OpenHands, Inspect and Langfuse. Shares no code with the
importers, like session_counts.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.session_counts import Counted, Tokens, dollars, priced, total

Row = dict[str, Any]


def atif(path: Path) -> list[Counted]:
    """Count a file of steps. Each agent step is a model call, and its observation has the results of its tool calls."""
    document = json.loads(path.read_text())
    steps = [step for step in document["steps"] if step["source"] == "agent"]
    results = [one for step in steps for one in step.get("observation", {}).get("results", ())]
    asked = [call["tool_call_id"] for step in steps for call in step.get("tool_calls", ())]
    return [
        Counted(
            user=sum(step["source"] == "user" for step in document["steps"]),
            system=sum(step["source"] == "system" for step in document["steps"]),
            assistant=len(steps),
            results=len(results),
            calls=len(asked),
            unanswered=len(set(asked) - {one["source_call_id"] for one in results}),
            model_calls=len(steps),
            cost=dollars(document["final_metrics"]["total_cost_usd"]),
        )
    ]


def swe_agent(path: Path) -> list[Counted]:
    """Count the history of the main agent. Only the run as a whole has token counts, without cached ones.

    A step that only the trajectory has is an answer and the output of its command, both without a call.
    """
    document = json.loads(path.read_text())
    history = document["history"]
    later = max(len(document.get("trajectory", ())) - sum(one["role"] == "assistant" for one in history), 0)
    stats = document.get("info", {}).get("model_stats", {})
    roles = [message["role"] for message in history]
    asked = sum(len(message.get("tool_calls") or ()) for message in history)
    answered = sum(len(message.get("tool_call_ids") or ()) for message in history)
    return [
        Counted(
            system=roles.count("system"),
            user=roles.count("user") + later,
            assistant=roles.count("assistant") + later,
            results=roles.count("tool"),
            calls=asked,
            unanswered=asked - answered,
            model_calls=roles.count("assistant") + later,
            tokens=Tokens(input=stats.get("tokens_sent", 0), output=stats.get("tokens_received", 0)),
            cost=dollars(stats.get("instance_cost")),
            unpriced=0 if stats else roles.count("assistant"),
        )
    ]


def mini_swe_agent(path: Path) -> list[Counted]:
    """Count a chat that stores the model's whole response with each answer. Commands are part of the texts."""
    document = json.loads(path.read_text())
    if isinstance(document, list):  # The format of the first versions.
        document = {"messages": document, "info": {}}
    roles = [message["role"] for message in document["messages"]]
    responses = [one["extra"]["response"] for one in document["messages"] if "response" in one.get("extra", {})]
    counts = [_openai(response["usage"]) for response in responses]
    cost = document["info"].get("model_stats", {}).get("instance_cost")
    return [
        Counted(
            system=roles.count("system"),
            user=roles.count("user"),
            assistant=roles.count("assistant"),
            model_calls=roles.count("assistant"),
            tokens=total(counts),
            cost=dollars(cost) if counts else None,
            unpriced=0 if counts else roles.count("assistant"),
        )
    ]


def _openai(usage: Row) -> Tokens:
    """Convert usage. LiteLLM adds Anthropic's names; `prompt_tokens` includes their counts."""
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return Tokens(
        input=usage["prompt_tokens"],
        cached=usage.get("cache_read_input_tokens") or prompt.get("cached_tokens") or 0,
        written=usage.get("cache_creation_input_tokens") or 0,
        output=usage["completion_tokens"],
        reasoning=completion.get("reasoning_tokens") or 0,
    )


#: Actions of an agent that are messages instead of calls.
_TALK = ("message", "system")


def openhands(path: Path) -> list[Counted]:
    """Count lists of events, or lines with one list each. A call is an agent's action, followed by its result."""
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return [_events(record["history"], record["metrics"]["accumulated_cost"]) for record in records]
    return [_events(json.loads(path.read_text()), None)]


def _events(events: list[Row], reported: float | None) -> Counted:
    """Count a list of events. The first action is the task, and each action of the agent is an answer.

    The call `finish` ends the run without an observation. The importer gives it an empty result, because it succeeded.
    """
    actions = [event for event in events if event.get("action")]
    agent = [event for event in actions[1:] if event.get("source") != "user"]
    calls = [event for event in agent if event["action"] not in _TALK and _is_call(event)]
    observations = [event for event in events if event.get("observation")]
    results = len(observations) + sum(event["action"] == "finish" for event in calls)
    responses = {
        event["tool_call_metadata"]["model_response"]["id"]: event["tool_call_metadata"]["model_response"]
        for event in agent
        if event.get("tool_call_metadata")
    }
    counts = [(_openai(one["usage"]), one["model"]) for one in responses.values()]
    vendor = "anthropic" if any(model.startswith("claude") for _, model in counts) else "openai"
    cost, unpriced = priced(counts, vendor)
    return Counted(
        user=len(actions) - len(agent),
        assistant=len(agent),
        results=results,
        calls=len(calls),
        errors=sum(event["observation"] == "error" for event in observations),
        unanswered=len(calls) - results,
        model_calls=len(agent),
        tokens=total(count for count, _ in counts),
        cost=cost if reported is None else dollars(reported),
        unpriced=unpriced + len(agent) - len(counts) if reported is None else 0,
    )


def _is_call(event: Row) -> bool:
    """Return whether an action is a call. An agent that writes no tool calls finishes with a plain action."""
    return event["action"] != "finish" or bool(event.get("tool_call_metadata"))


def inspect(path: Path) -> list[Counted]:
    """Count a log. Each sample is a run, identified by ID and epoch. The input includes cached tokens."""
    if path.suffix == ".eval":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.startswith("samples/")]
            samples = [json.loads(archive.read(name)) for name in names]
            model = json.loads(archive.read("header.json"))["eval"]["model"]
    else:
        document = json.loads(path.read_text())
        if "samples" not in document:
            return [_transcript(document["events"])]
        samples, model = document["samples"], document["eval"]["model"]
    return [_sample(sample, model) for sample in sorted(samples, key=lambda one: (one["id"], one["epoch"]))]


def _sample(sample: Row, model: str) -> Counted:
    """Count a sample. A tool message without a call gets one, because the site has no result without a call."""
    roles = [message["role"] for message in sample["messages"]]
    tools = [message for message in sample["messages"] if message["role"] == "tool"]
    asked = {call["id"] for message in sample["messages"] for call in message.get("tool_calls") or ()}
    answered = {message["tool_call_id"] for message in tools}
    events = sample.get("events") or sample.get("transcript", {}).get("events", [])
    counts = [_inspected(event["output"]["usage"]) for event in events if event["event"] == "model"]
    vendor, _, name = model.partition("/")
    cost, unpriced = priced([(count, name) for count in counts], vendor)
    return Counted(
        system=roles.count("system"),
        user=roles.count("user"),
        assistant=roles.count("assistant") + len(answered - asked),
        results=len(tools),
        calls=len(asked | answered),
        errors=sum(bool(message.get("error")) for message in tools),
        unanswered=len(asked - answered),
        model_calls=len(counts),
        tokens=total(counts),
        cost=cost,
        unpriced=unpriced,
    )


def _transcript(events: list[Row]) -> Counted:
    """Count a log with only events. The inputs of the model calls form a conversation. Each text counts once."""
    models = [event for event in events if event["event"] == "model"]
    tools = [event for event in events if event["event"] == "tool"]
    sent = {(message["role"], str(message["content"])) for event in models for message in event["input"]}
    counts = [_inspected(event["output"]["usage"]) for event in models]
    roles = [role for role, _ in sent]
    return Counted(
        system=roles.count("system"),
        user=roles.count("user"),
        assistant=len(models),
        results=len(tools),
        calls=len(tools),
        errors=sum(bool(event.get("error")) for event in tools),
        model_calls=len(models),
        tokens=total(counts),
        unpriced=len(models),
    )


def _inspected(usage: Row) -> Tokens:
    return Tokens(
        input=usage["input_tokens"],
        cached=usage.get("input_tokens_cache_read", 0),
        written=usage.get("input_tokens_cache_write", 0),
        output=usage["output_tokens"],
        reasoning=usage.get("reasoning_tokens", 0),
    )


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
