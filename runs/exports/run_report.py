"""A run as one HTML file that can be passed on: no scripts, no external files, one embedded style sheet.

All texts are masked and escaped. The Content-Security-Policy in the page forbids scripts, requests and frames, so that
it is also harmless when it is opened from a disk.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django.template.loader import render_to_string

from agentops.base import database_clock
from runs.changes.git_patch import hunk_text
from runs.conversation import call_ids
from runs.exports.list_files import pages_of
from runs.models import AgentRun, AgentRunToolCall, RunNote
from runs.queries.durations import times_of, with_times
from runs.queries.record_columns import MESSAGE, RunKey, of_run
from runs.queries.run_changes import changes_of
from timeline.display import Clip, clean, clip, format_elapsed, format_json, format_ms, total_cost
from timeline.reasons import FINISH_LABELS, reason_label

#: Maximum bytes of a text. A longer text is cut; the JSON file has all of it.
MAX_BYTES = 64 * 1024
#: Messages per portion.
ROWS = 10
#: Maximum bytes of all diffs.
MAX_DIFFS = 1024 * 1024
#: Maximum rows of the table of tool calls.
MAX_CALLS = 1000
_ROLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool_result": "Tool result"}
_STYLE = "runs/report/report.css"


@dataclass(frozen=True)
class ReportPart:
    """A part of a message: `kind` is "text", "thinking", "call" or "result"."""

    kind: str
    title: str
    clip: Clip


@dataclass(frozen=True)
class ReportMessage:
    """A message of the conversation."""

    position: int
    step: int
    role: str
    role_name: str
    at: datetime
    is_rolled_back: bool
    parts: list[ReportPart]
    #: How an answer is not whole, such as "cut off"; empty otherwise.
    fault: str = ""


@dataclass(frozen=True)
class ReportFile:
    """A changed file, with its diff as text."""

    path: str
    old_path: str
    status: str
    additions: int | None
    deletions: int | None
    diff: Clip
    notes: list[str]


@cache
def report_policy() -> str:
    """Return the Content-Security-Policy of a report: it allows only the embedded style sheet."""
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def report_portions(run: AgentRun, *, with_notes: bool) -> Iterator[str]:
    """Yield the report of a run in portions. `run` has its project and log.

    `with_notes`: whether it contains the run's notes, which are for members of the project only.
    """
    yield render_to_string("runs/report/head.html", _head(run, with_notes=with_notes))
    is_empty = True
    for messages in _messages(run):
        is_empty = False
        yield render_to_string("runs/report/_messages.html", {"messages": messages})
    calls = [_call(call) for call in _calls(run)]
    tail = {"is_empty": is_empty, "calls": calls[:MAX_CALLS], "has_more_calls": len(calls) > MAX_CALLS}
    tail |= {"files": list(_changed_files(run))}
    yield render_to_string("runs/report/tail.html", tail)


def _style() -> str:
    return render_to_string(_STYLE)


def _head(run: AgentRun, *, with_notes: bool) -> dict[str, Any]:
    """Return the context of the first part of the report."""
    now = database_clock.now()
    timed = with_times(AgentRun.objects.select_related("log")).get(pk=run.pk)
    times = times_of(timed, now)
    config = run.agent_config
    facts = [
        ("Agent", clean(str(config.get("agent_id") or "")) or "–"),
        ("Code version", str(run.code_version))
        if run.is_durable
        else ("Model", clean(str(config.get("model") or "")) or "–"),
        ("Created", _time(run.created_at)),
        ("Ended", _time(run.completed_at)),
        ("Duration", format_elapsed(times.worked_s) if times else "–"),
        ("Steps", str(run.step_count)),
        ("Tokens in / out", f"{run.input_tokens:,} / {run.output_tokens:,}"),
        ("Cost", total_cost(run.cost_usd, run.unpriced_calls) or "unknown"),
    ]
    notes = list(RunNote.objects.filter(run=run).order_by("pk")) if with_notes else []
    return {
        "run": run,
        "title": clean(run.title) or "(untitled)",
        "reason": clean(reason_label(run.status_reason)),
        "summary": clip(run.summary, MAX_BYTES),
        "error": clip(run.error_message, MAX_BYTES),
        "error_type": clean(run.error_type),
        "labels": [clean(str(label)) for label in run.labels],
        "facts": facts,
        "notes": [(clean(each.author), _time(each.created_at), clean(each.text)) for each in notes],
        "policy": report_policy(),
        "style": _STYLE,
        "now": _time(now),
    }


def _messages(run: AgentRun) -> Iterator[list[ReportMessage]]:
    key = RunKey(run.pk, run.project_id, run.log.last_seq)
    for texts in pages_of(MESSAGE, of_run(key, "m"), ROWS):
        yield [_message(json.loads(text)) for text in texts]


def _message(row: dict[str, Any]) -> ReportMessage:
    """Convert a message from the JSON of the API."""
    parts = [part for part in row["content"].get("parts", ()) if isinstance(part, dict)]
    return ReportMessage(
        position=row["position"],
        step=row["step_number"],
        role=row["role"],
        role_name=_role_name(row),
        at=datetime.fromisoformat(row["created_at"]),
        is_rolled_back=row["rolled_back_at"] is not None,
        parts=[_part(part) for part in parts],
        fault=FINISH_LABELS.get(row["finish_reason"] or "", ""),
    )


def _role_name(row: dict[str, Any]) -> str:
    """Return the role of a message for display. A step of a remote run without a model has no assistant."""
    if call_ids.is_step(row["content"]):
        return "Step" if row["role"] == "assistant" else "Result"
    return _ROLES.get(row["role"], str(row["role"]))


def _part(part: dict[str, Any]) -> ReportPart:
    """Convert a stored part of a message, masked and cut."""
    kind, content = part.get("part_kind"), part.get("content")
    if kind == "tool-call":
        arguments = clip(format_json(part.get("args") or {}), MAX_BYTES)
        return ReportPart("call", f"Calls {clean(str(part.get('tool_name')))}", arguments)
    if kind == "thinking":
        return ReportPart("thinking", "Thinking", clip(content if isinstance(content, str) else "", MAX_BYTES))
    if kind in ("tool-return", "retry-prompt"):
        return ReportPart("result", clean(str(part.get("tool_name") or "")), clip(_text(content), MAX_BYTES))
    return ReportPart("text", "", clip(_text(content), MAX_BYTES))


def _text(content: Any) -> str:
    """Return content of a message as text. Media become placeholders: their data would make the page too large."""
    if isinstance(content, list):
        return "\n".join(map(_text, content))
    if isinstance(content, dict) and content.keys() & {"media_type", "kind"}:
        return f"[{content.get('media_type') or content.get('kind')}]"
    return content if isinstance(content, str) else "" if content is None else format_json(content)


def _changed_files(run: AgentRun) -> Iterator[ReportFile]:
    """Yield the changed files of a run. Diffs beyond MAX_DIFFS bytes in total are left out."""
    left = MAX_DIFFS
    for change in changes_of(run).files:
        diff = clip("".join(map(hunk_text, change.hunks)), max(min(left, MAX_BYTES), 0))
        left -= len(diff.text.encode(errors="replace"))
        yield ReportFile(
            clean(change.path),
            clean(change.old_path),
            change.status,
            change.additions,
            change.deletions,
            diff,
            [*change.notes],
        )


def _calls(run: AgentRun) -> Any:
    columns = ("tool_name", "status", "step_number", "duration_ms", "resolved_by")
    return AgentRunToolCall.objects.filter(run=run).order_by("step_number", "pk").only(*columns)[: MAX_CALLS + 1]


def _call(call: AgentRunToolCall) -> dict[str, Any]:
    return {
        "step": call.step_number,
        "name": clean(call.tool_name),
        "status": call.status,
        "duration": "–" if call.duration_ms is None else format_ms(call.duration_ms),
        "resolved_by": clean(call.resolved_by or ""),
    }


def _time(at: datetime | None) -> str:
    return "–" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
