"""Sessions of Codex CLI and Gemini CLI, and chats in the format of OpenAI's API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.recordings.counters.counted import Counted, Tokens, priced, total

Row = dict[str, Any]


def codex(path: Path) -> list[Counted]:
    """Count a rollout. An answer ends at the first tool output or user message after it; a turn may have many answers.

    Input tokens include cached ones, and output tokens include reasoning. The usage of a turn is `last_token_usage`.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    items = [row["payload"] for row in rows if row["type"] == "response_item"]
    model = next(row["payload"]["model"] for row in rows if row["type"] == "turn_context")
    told = [row["payload"] for row in rows if row["type"] == "event_msg"]
    counts = [_turn(one["info"]["last_token_usage"]) for one in told if one["type"] == "token_count"]
    roles = [item.get("role", item["type"]) for item in items]
    answers, inside = 0, False
    for role in roles:
        is_answer = role in ("assistant", "reasoning", "function_call")
        answers += is_answer and not inside
        inside = is_answer
    results = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    asked = {item["call_id"] for item in items if item["type"] == "function_call"}
    cost, unpriced = priced([(count, model) for count in counts], "openai")
    return [
        Counted(
            system=roles.count("developer"),
            user=roles.count("user"),
            assistant=answers,
            results=len(results),
            calls=len(asked),
            errors=0,  # Both commands exited with 0.
            unanswered=len(asked - results),
            model_calls=answers,
            tokens=total(counts),
            cost=cost,
            unpriced=unpriced + answers - len(counts),
        )
    ]


def _turn(usage: Row) -> Tokens:
    return Tokens(
        input=usage["input_tokens"],
        cached=usage["cached_input_tokens"],
        output=usage["output_tokens"],
        reasoning=usage["reasoning_output_tokens"],
    )


def gemini_cli(path: Path) -> list[Counted]:
    """Count a chat. The output excludes thoughts, and the input includes cached tokens."""
    document = json.loads(path.read_text())
    answers = [row for row in document["messages"] if row["type"] == "gemini"]
    counts = [
        Tokens(
            input=count["input"],
            cached=count["cached"],
            output=count["output"] + count["thoughts"],
            reasoning=count["thoughts"],
        )
        for count in (row["tokens"] for row in answers)
    ]
    calls = [call for row in answers for call in row.get("toolCalls", ())]
    cost, unpriced = priced([(count, row["model"]) for count, row in zip(counts, answers, strict=True)], "google")
    return [
        Counted(
            user=sum(row["type"] == "user" for row in document["messages"]),
            assistant=len(answers),
            results=sum(call["status"] in ("success", "error") for call in calls),
            calls=len(calls),
            errors=sum(call["status"] == "error" for call in calls),
            model_calls=len(answers),
            tokens=total(counts),
            cost=cost,
            unpriced=unpriced,
        )
    ]


def tau_bench(path: Path) -> list[Counted]:
    """Count records with a chat. A tool message has no failure flag, so no failure is counted, whatever its text says.

    If a model reuses an ID for a later call, that call counts separately.
    """
    found = []
    for record in json.loads(path.read_text()):
        chat = record["traj"]
        roles = [message["role"] for message in chat]
        asked = sum(len(message.get("tool_calls") or ()) for message in chat)
        found.append(
            Counted(
                system=roles.count("system"),
                user=roles.count("user"),
                assistant=roles.count("assistant"),
                results=roles.count("tool"),
                calls=asked,
                unanswered=asked - roles.count("tool"),
                model_calls=roles.count("assistant"),
                unpriced=roles.count("assistant"),
            )
        )
    return found
