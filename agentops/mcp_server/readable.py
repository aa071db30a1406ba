"""API rows in a form for models, without empty and duplicate fields, with long texts truncated; summaries of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from agentops.base import database_clock
from agentops.mcp_server.api_access import Api, Query, get
from agentops.mcp_server.api_tool import cut

Row = Mapping[str, Any]
_EMPTY: tuple[Any, ...] = (None, "", [], {})
#: Fields of a payload that repeat others, under the names of another vocabulary.
_DUPLICATES = ("tool", "argsSummary", "durationMs")
_AGO = re.compile(r"(?P<count>[0-9]{1,4})(?P<unit>[mhd])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def compact(row: Row) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in row.items() if value not in _EMPTY}


def moment(text: str | None) -> str | None:
    """Return the time that a text such as "24h" (24 hours ago) means; other texts unchanged, for the API to check."""
    ago = None if text is None else _AGO.fullmatch(text.strip())
    if ago is None:
        return text
    return (database_clock.now() - timedelta(**{_UNITS[ago["unit"]]: int(ago["count"])})).isoformat()


def now() -> str:
    """Return the current time, which a model does not know."""
    return database_clock.now().isoformat(timespec="seconds")


def message(row: Row, length: int) -> dict[str, Any]:
    """Return a message with texts of at most `length` characters."""
    names = ("id", "position", "role", "step_number", "created_at")
    content = row.get("content") or {}
    fields = {name: row[name] for name in names} | {"parts": [_part(part) for part in content.get("parts") or ()]}
    finish_reason = {"finish_reason": row["finish_reason"]} if row.get("finish_reason") else {}
    rolled_back = {"rolled_back": True} if row.get("rolled_back_at") else {}
    return dict(cut(fields | finish_reason | rolled_back, length))


def _part(part: Row) -> dict[str, Any]:
    """Return a part of a message with its text, thinking, tool call or tool result."""
    kind, content = part.get("part_kind"), part.get("content")
    call_id = {"call_id": part.get("tool_call_id")}
    match kind:
        case "thinking":
            return {"thinking": content}
        case "tool-call":
            return {"tool_call": part.get("tool_name"), "arguments": part.get("args"), **call_id}
        case "tool-return":
            return {"tool_result": part.get("tool_name"), "output": _text(content), **call_id}
        case "text" | "user-prompt" | "system-prompt":
            return {"text": _text(content)}
    return {"kind": kind}


def _text(content: Any) -> Any:
    """Return a text unchanged, and a list of parts with media replaced by their types."""
    if not isinstance(content, list):
        return content
    return [part if isinstance(part, str) else f"[{_media_type(part)}]" for part in content]


def _media_type(part: Any) -> str:
    return str(part.get("media_type") or part.get("kind") or "media") if isinstance(part, dict) else "media"


def event(row: Row) -> dict[str, Any]:
    """Return an event without the fields that all events of a run share."""
    payload = {name: value for name, value in row["payload"].items() if name not in _DUPLICATES}
    return compact({name: row[name] for name in ("seq", "type", "ts", "step")} | {"payload": payload})


def line(row: Row) -> dict[str, Any]:
    """Return an event with its description in place of the payload."""
    return {"seq": row["seq"], "type": row["type"], "ts": row["ts"], "message": row["payload"].get("message", "")}


def call(row: Row, length: int) -> dict[str, Any]:
    """Return a tool call with its input and output, truncated."""
    names = ("id", "tool_name", "status", "step_number", "duration_ms", "started_at", "child_run_id", "input", "output")
    return dict(cut(compact({name: row.get(name) for name in names}), length))


#: Number of errors, of calls and of failed calls in a summary.
IN_SUMMARY = 3
#: Number of events in a summary.
EVENTS = 8
#: Characters of a text in a summary.
MAX_TEXT = 1_000
#: Fields that describe how a run was executed, not what happened.
_OMITTED = frozenset({"agent_config", "run_kind", "starts_fresh", "step_base", "requeued_at", "waited", "last_seq"})
#: Status reason → the name for what the run waits for, in the list of approvals.
_LISTED = {"approval": "approvals", "input": "questions", "unknown_tool": "unknown_outcomes"}


async def run_summary(api: Api, project: str, run_id: str) -> dict[str, Any]:
    """Return the summary of a run: its fields, the ends of its lists, and the decision that it waits for."""
    path = f"{project}/agent-runs/{run_id}"
    run = await get(api, path)
    log = await get(api, f"{path}/events", {"afterSeq": max(run["last_seq"] - EVENTS, 0), "limit": EVENTS})
    usage = await get(api, f"{path}/usage", {"limit": 1})
    return compact(
        {
            "run": _run(run),
            "waits_for": await _waits_for(api, project, run, log["results"]),
            "usage": {name: value for name, value in usage["totals"].items() if value},
            "last_errors": [compact(row) for row in (await _last_page(api, f"{path}/errors", {}))["results"]],
            "last_failed_tool_calls": await _calls(api, path, {"status": "error,denied,unknown"}),
            "last_tool_calls": await _calls(api, path, {}),
            "last_events": [line(event) for event in log["results"]],
            "last_seq": log["last_seq"],
        }
    )


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    config = run["agent_config"] or {}
    agent = compact({name: config.get(name) for name in ("provider", "model", "version", "tools")})
    fields = {name: value for name, value in run.items() if name not in _OMITTED}
    return compact({**fields, "agent": agent})


async def _last_page(api: Api, path: str, filters: Query) -> Any:
    return await get(api, path, {**filters, "limit": IN_SUMMARY, "at": "end"})


async def _calls(api: Api, path: str, filters: Query) -> list[dict[str, Any]]:
    """Return the last calls with their arguments and outputs."""
    page = await _last_page(api, f"{path}/tool-calls", filters)
    whole = [await get(api, f"{path}/tool-calls/{row['id']}") for row in page["results"]]
    return [call(row, MAX_TEXT) for row in whole]


async def _waits_for(api: Api, project: str, run: Mapping[str, Any], events: list[dict[str, Any]]) -> Any:
    """Return what the run waits for: pending approvals, or the last event `run.waiting`; None if it does not wait."""
    if run["status"] != "waiting":
        return None
    if run["status_reason"] in _LISTED:
        page = await get(api, f"{project}/approvals", {"run_id": run["id"], "state": "pending"})
        if page["results"]:
            return {_LISTED[run["status_reason"]]: [compact(row) for row in page["results"]]}
    waits = [event for event in events if event["type"] == "run.waiting"]
    return compact({**waits[-1]["payload"], "seq": waits[-1]["seq"]}) if waits else None
