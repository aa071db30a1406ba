"""Counts the contents of recorded sessions and chats directly from their formats, and the cost of their tokens.

The formats are those of Claude Code, the Claude Agent SDK, Codex CLI, Gemini CLI and OpenAI's API. Shares no code with
the importers: imports nothing from the site, and a test of the corpus checks that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from genai_prices import Usage, calc_price

PLACES = Decimal("0.00000001")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens in the convention of the API: `input` includes cached ones, and `written` includes `written_1h`."""

    input: int = 0
    cached: int = 0
    written: int = 0
    written_1h: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(**{name: value + vars(other)[name] for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A run: its messages by role, tool calls and their results, model calls, tokens, and cost in US dollars."""

    system: int = 0
    user: int = 0
    assistant: int = 0
    results: int = 0
    calls: int = 0
    errors: int = 0
    #: Calls without a result.
    unanswered: int = 0
    model_calls: int = 0
    tokens: Tokens = Tokens()
    #: None if no cost is reported and no price is published.
    cost: Decimal | None = None
    unpriced: int = 0


def total(tokens: Iterable[Tokens]) -> Tokens:
    return sum(tokens, Tokens())


def dollars(amount: float | None) -> Decimal | None:
    """Return a reported cost as the API shows it."""
    return None if amount is None else round(Decimal(str(amount)), 8)


def published(tokens: Tokens, model: str, vendor: str) -> Decimal | None:
    """Return the cost of a call at the published prices, or None if the model has no price.

    Anthropic's one-hour cache writes cost twice the input, which the price list lacks.
    """
    if not any(vars(tokens).values()):
        return None
    count = Usage(
        input_tokens=tokens.input - tokens.written_1h,
        cache_read_tokens=tokens.cached,
        cache_write_tokens=tokens.written - tokens.written_1h,
        output_tokens=tokens.output,
    )
    try:
        price = calc_price(count, model, provider_id=vendor).total_price
        hour = 2 * calc_price(Usage(input_tokens=tokens.written_1h), model, provider_id=vendor).total_price
    except LookupError:
        return None
    return round(price + hour, 8)


def priced(calls: Iterable[tuple[Tokens, str]], vendor: str) -> tuple[Decimal | None, int]:
    """Return the total cost of model calls, and the number of calls without a price."""
    costs = [published(tokens, model, vendor) for tokens, model in calls]
    known = [cost for cost in costs if cost is not None]
    return (sum(known, Decimal()) if known else None), len(costs) - len(known)


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


class Counts(NamedTuple):
    calls: int
    tool_calls: int
    errors: int
    unanswered: int
    user_turns: int  # Without the first prompt; adjacent messages count once.
    prompt_items: int
    output_tokens: int
    result_chars: int


def of_session(path: Path) -> Counts:
    """Count the active branch: mark the ancestors of the last message, until a round marks nothing new."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    talk = [row for row in rows if row["type"] in ("user", "assistant") and not row.get("isSidechain")]
    marked = {talk[-1]["uuid"]}
    size = 0
    while size != len(marked):
        size = len(marked)
        for row in reversed(rows):  # Parents come first in the file, so one round marks nearly all.
            if row.get("uuid") in marked:
                marked |= {row["parentUuid"] or row.get("logicalParentUuid")} - {None}
    branch = [row for row in talk if row["uuid"] in marked]
    ids = {row["message"]["id"] for row in branch if _real(row)}
    usage = {row["message"]["id"]: row["message"]["usage"]["output_tokens"] for row in talk if _real(row)}
    real = [row for row in talk if _real(row) and row["message"]["id"] in ids]
    asked = {block["id"] for row in real for block in _uses(row)}
    answers = {block["tool_use_id"]: block for row in talk for block in _results(row)}
    mine = {call_id: answers[call_id] for call_id in asked if call_id in answers}
    prompt_items, turns = _user_turns(branch)
    return Counts(
        calls=len(ids),
        tool_calls=len(asked),
        errors=sum(block.get("is_error") is True for block in mine.values()),
        unanswered=len(asked - set(answers)),
        user_turns=turns,
        prompt_items=prompt_items,
        output_tokens=sum(usage[message_id] for message_id in ids),
        result_chars=sum(_chars(block.get("content")) for block in mine.values()),
    )


def of_whole_session(path: Path) -> tuple[int, int, int]:
    """Return the tool calls, errors and unanswered calls in the whole file, including side branches."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    uses = [block["id"] for row in rows if row["type"] == "assistant" for block in _uses(row)]
    results = [block for row in rows for block in _results(row)]
    answered = {block["tool_use_id"] for block in results}
    errors = sum(block.get("is_error") is True for block in results)
    return len(uses), errors, sum(call_id not in answered for call_id in uses)


def of_record(path: Path, index: int) -> Counts:
    """Count a tau-bench record by the roles of its messages."""
    chat = json.loads(path.read_text(encoding="utf-8"))[index]["traj"]
    roles = [message["role"] for message in chat]
    tools = [message["content"] for message in chat if message["role"] == "tool"]
    asked = sum(len(message.get("tool_calls") or []) for message in chat)
    first = roles.index("assistant")
    later = roles[first:]
    return Counts(
        calls=roles.count("assistant"),
        tool_calls=asked,
        errors=sum(content[:5] == "Error" for content in tools),
        unanswered=asked - len(tools),
        user_turns=sum(role == "user" and later[at - 1] != "user" for at, role in enumerate(later)),
        prompt_items=roles[:first].count("user"),
        output_tokens=0,
        result_chars=sum(len(content) for content in tools),
    )


def _real(row: dict[str, Any]) -> bool:
    return row["type"] == "assistant" and row["message"]["model"] != "<synthetic>"


def _uses(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in row["message"]["content"] if block["type"] == "tool_use"]


def _results(row: dict[str, Any]) -> list[dict[str, Any]]:
    content = row.get("message", {}).get("content")
    if row["type"] != "user" or not isinstance(content, list):
        return []
    return [block for block in content if block["type"] == "tool_result"]


def _user_turns(branch: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the number of parts of the first prompt, and the number of later turns with content."""
    prompt_items, turns, called, inside = 0, 0, False, False
    for row in branch:
        content = row["message"]["content"]
        if _real(row):
            called, inside = True, False
        elif row["type"] == "user" and not row.get("isMeta"):
            blocks = [{"type": "text"}] if isinstance(content, str) else content
            items = sum(block["type"] != "tool_result" for block in blocks)
            if not called:
                prompt_items += items
            elif items and not inside:
                turns, inside = turns + 1, True
    return prompt_items, turns


def _chars(content: Any) -> int:
    """Return the number of characters of text, and of the base64 of media."""
    if isinstance(content, list):
        return sum(len(item["text"] if "text" in item else item["source"]["data"]) for item in content)
    return len(content or "")
