"""A run as a file: everything as JSON, events as JSONL, messages or tool calls as CSV, a report as HTML."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentops.base.http.csv_rows import csv_lines
from runs.exports.export_file import ExportFile
from runs.exports.run_report import report_portions
from runs.models import AgentRun, RunNote
from runs.queries.json_columns import to_json
from runs.queries.json_lists import Listing, Rows, RowSpan, Where
from runs.queries.record_columns import EVENTS, MESSAGE, TOOL_CALL, RunKey, of_run, of_run_in
from runs.queries.run_columns import RUN, runs_of, with_id
from timeline.display import clean

#: The `format` of the JSON file. It changes if a member is removed or changes its meaning.
JSON_FORMAT = "agentops.run/1"
#: Rows per portion. Messages and tool outputs may have megabytes.
LARGE_ROWS, SMALL_ROWS = 10, 200
MESSAGE_COLUMNS = ("position", "role", "step_number", "model", "created_at", "rolled_back_at", "content")
CALL_COLUMNS = (
    *("id", "call_id", "tool_name", "status", "step_number", "effect", "starts", "attempts", "duration_ms"),
    *("created_at", "started_at", "finished_at", "resolved_by", "child_run_id", "input", "output"),
)


class RunFormat(enum.StrEnum):
    """The formats of a run."""

    #: The run, its notes, messages, tool calls and events, as one JSON object.
    JSON = "json"
    #: The events, as a JSON object on each line.
    EVENTS = "events"
    MESSAGES = "messages"
    TOOL_CALLS = "tool-calls"
    #: A page without scripts or other files.
    HTML = "html"


def export_run(run: AgentRun, file_format: RunFormat) -> ExportFile:
    """Return a run as a file. `run` has its project and log; the caller has checked Action.EXPORT."""
    suffix, media_type, portions = _WRITERS[file_format]
    return ExportFile(f"run-{run.pk}{suffix}", f"{media_type}; charset=utf-8", portions(run))


def note_json(note: RunNote) -> dict[str, Any]:
    """Return a note in the form used by files."""
    return {
        "id": str(note.pk),
        "author": clean(note.author),
        "text": clean(note.text),
        "created_at": note.created_at.isoformat(),
        "edited_at": note.edited_at.isoformat() if note.edited_at else None,
    }


def _json(run: AgentRun) -> Iterator[str]:
    key = RunKey(run.pk, run.project_id, run.log.last_seq)
    fields = RUN.one(with_id(runs_of(run.project_id), "r.id", run.pk)) or "{}"
    notes = [note_json(note) for note in RunNote.objects.filter(run=run).order_by("pk")]
    yield f'{{"format":{json.dumps(JSON_FORMAT)},"run":{fields},"notes":{to_json(notes)}'
    parts = (
        ("messages", MESSAGE, of_run(key, "m"), LARGE_ROWS),
        ("tool_calls", TOOL_CALL, of_run(key, "t"), LARGE_ROWS),
        ("events", EVENTS, of_run_in(run.project_id, run.pk, "e.log_id"), SMALL_ROWS),
    )
    for name, listing, where, rows in parts:
        separator = f',"{name}":['
        for texts in _pages(listing, where, rows):
            yield separator + ",".join(texts)
            separator = ","
        yield "]" if separator == "," else f"{separator}]"
    yield "}\n"


def _events(run: AgentRun) -> Iterator[str]:
    for texts in _pages(EVENTS, of_run_in(run.project_id, run.pk, "e.log_id"), SMALL_ROWS):
        yield "".join(f"{text}\n" for text in texts)


def _messages(run: AgentRun) -> Iterator[str]:
    return _csv(run, MESSAGE, "m", MESSAGE_COLUMNS)


def _tool_calls(run: AgentRun) -> Iterator[str]:
    return _csv(run, TOOL_CALL, "t", CALL_COLUMNS)


def _csv(run: AgentRun, listing: Listing, alias: str, columns: Sequence[str]) -> Iterator[str]:
    yield csv_lines([columns])
    key = RunKey(run.pk, run.project_id, run.log.last_seq)
    for texts in _pages(listing, of_run(key, alias), LARGE_ROWS):
        yield csv_lines([row[name] for name in columns] for row in map(json.loads, texts))


def _pages(listing: Listing, where: Where, limit: int) -> Iterator[list[str]]:
    """Yield the rows of a list as JSON texts, masked, in portions."""
    span = RowSpan(limit=limit)
    while True:
        rows: Rows = listing.page(where, span)
        if len(rows):
            yield rows.items
        if len(rows) < limit:
            return
        span = RowSpan(rows.position_of(-1), limit=limit)


def _report(run: AgentRun) -> Iterator[str]:
    return report_portions(run, with_notes=True)


_WRITERS: dict[RunFormat, tuple[str, str, Callable[[AgentRun], Iterator[str]]]] = {
    RunFormat.JSON: (".json", "application/json", _json),
    RunFormat.EVENTS: (".events.jsonl", "application/x-ndjson", _events),
    RunFormat.MESSAGES: (".messages.csv", "text/csv", _messages),
    RunFormat.TOOL_CALLS: (".tool-calls.csv", "text/csv", _tool_calls),
    RunFormat.HTML: (".html", "text/html", _report),
}
