"""API rows in a form suited to models: without empty and duplicate fields, and with long texts truncated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from agentops.base import database_clock
from agentops.mcp_server.bounds import cut

Row = Mapping[str, Any]
_EMPTY: tuple[Any, ...] = (None, "", [], {})
#: Duplicate fields of an event; the camel case names belong to another vocabulary.
_TWICE = ("tool", "argsSummary", "durationMs")
_AGO = re.compile(r"(?P<count>[0-9]{1,4})(?P<unit>[mhd])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def compact(row: Row) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in row.items() if value not in _EMPTY}


def moment(text: str | None) -> str | None:
    """Return a time; "24h" means 24 hours ago. Other texts are passed to the API, which refuses invalid times."""
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
    shown = {name: row[name] for name in names} | {"parts": [_part(part) for part in content.get("parts") or ()]}
    rolled_back = {"rolled_back": True} if row.get("rolled_back_at") else {}
    return dict(cut(shown | rolled_back, length))


def _part(part: Row) -> dict[str, Any]:
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
    return [part if isinstance(part, str) else f"[{_kind(part)}]" for part in content]


def _kind(part: Any) -> str:
    return str(part.get("media_type") or part.get("kind") or "media") if isinstance(part, dict) else "media"


def event(row: Row) -> dict[str, Any]:
    """Return an event without the fields that all events of a run share."""
    payload = {name: value for name, value in row["payload"].items() if name not in _TWICE}
    return compact({name: row[name] for name in ("seq", "type", "ts", "step")} | {"payload": payload})


def line(row: Row) -> dict[str, Any]:
    """Return an event as its description."""
    return {"seq": row["seq"], "type": row["type"], "ts": row["ts"], "message": row["payload"].get("message", "")}


def call(row: Row, length: int) -> dict[str, Any]:
    """Return a tool call with its input and output, truncated."""
    names = ("id", "tool_name", "status", "step_number", "duration_ms", "started_at", "child_run_id", "input", "output")
    return dict(cut(compact({name: row.get(name) for name in names}), length))


def rows(found: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows without their empty fields."""
    return [compact(row) for row in found]
