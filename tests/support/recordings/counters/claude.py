"""Sessions of Claude Code and messages of the Claude Agent SDK, whose messages have the format of Anthropic's API.

An answer is one model call, even if it has several lines. The lines share `message.id`; the last has the final usage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.recordings.counters.counted import Counted, Tokens, dollars, priced, total

Row = dict[str, Any]
VENDOR = "anthropic"


def sessions(path: Path) -> list[Counted]:
    """Count a session file: the session, then the sub-agents whose messages are in the progress of a call."""
    rows = list(_rows(path))
    talk = [row for row in rows if row["type"] in ("user", "assistant")]
    agents: dict[str, list[Row]] = {}
    for row in rows:
        if row["type"] == "progress" and row["data"]["type"] == "agent_progress":
            agents.setdefault(row["data"]["agentId"], []).append(row["data"]["message"])
    return [_conversation(talk), *map(_conversation, agents.values())]


def sdk_messages(path: Path) -> list[Counted]:
    """Count recorded messages of the SDK, in each layout of the recordings. Each list is a run."""
    document = json.loads(path.read_text())
    asked = [each["input"]["prompt"] for each in document.get("calls", ())] or [document.get("prompt")]
    lists = [each["events"] for each in document.get("calls", ())] or [document["messages"]]
    return [_sdk_run(prompt, rows) for prompt, rows in zip(asked, lists, strict=True)]


def _sdk_run(prompt: str | None, wrapped: list[Row]) -> Counted:
    """Count one run. The cost is the program's report, which includes model calls without a message."""
    rows = [row["message"] if "relativeTimestamp" in row else row for row in wrapped]
    streamed: dict[str, Row] = {}
    answer = ""
    for row in rows:
        event = row.get("event", {})
        if event.get("type") == "message_start":
            answer = event["message"]["id"]
        elif event.get("type") == "message_delta":
            streamed[answer] = event["usage"]
    run = _conversation([row for row in rows if row["type"] in ("user", "assistant")], streamed)
    [result] = [row for row in rows if row["type"] == "result"]
    own = {"user": run.user + (prompt is not None), "cost": dollars(result["total_cost_usd"]), "unpriced": 0}
    return Counted(**{**vars(run), **own})


def _rows(path: Path) -> Iterator[Row]:
    """Yield the lines of a session, except lines that no program of the vendor writes."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        yield from json.loads(text)["loglines"]
        return
    for line in filter(str.strip, text.split("\n")):
        row = json.loads(line)
        if isinstance(row, dict) and "type" in row and _is_sound(row):
            yield row


def _is_sound(row: Row) -> bool:
    if row["type"] not in ("user", "assistant"):
        return True
    message = row.get("message")
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    return isinstance(content, str) or (isinstance(content, list) and all(isinstance(one, dict) for one in content))


def _conversation(rows: list[Row], streamed: dict[str, Row] | None = None) -> Counted:
    answers: dict[str, Row] = {}
    blocks: list[Row] = []
    users = 0
    for place, row in enumerate(rows):
        message = row["message"]
        content = message["content"]
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks += content
        if row["type"] == "assistant":
            answers[message.get("id", f"line {place}")] = message  # The last line wins.
        else:
            users += any(block["type"] != "tool_result" for block in content)
    real = {name: message for name, message in answers.items() if message.get("model") != "<synthetic>"}
    usage = {name: _tokens((streamed or {}).get(name) or message.get("usage") or {}) for name, message in real.items()}
    cost, unpriced = priced([(usage[name], real[name].get("model", "")) for name in real], VENDOR)
    results = {block["tool_use_id"]: block for block in blocks if block["type"] == "tool_result"}
    asked = {block["id"] for block in blocks if block["type"] == "tool_use"}
    return Counted(
        user=users,
        assistant=len(answers),
        results=len(results),
        calls=len(asked),
        errors=sum(block.get("is_error") is True for block in results.values()),
        unanswered=len(asked - set(results)),
        model_calls=len(real),
        tokens=total(usage.values()),
        cost=cost,
        unpriced=unpriced,
    )


def _tokens(usage: Row) -> Tokens:
    """Convert usage. Anthropic's input tokens exclude cache reads and writes."""
    cached, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
    return Tokens(
        input=usage.get("input_tokens", 0) + cached + written,
        cached=cached,
        written=written,
        written_1h=(usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens", 0),
        output=usage.get("output_tokens", 0),
    )
