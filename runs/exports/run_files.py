"""A run as a file: everything as JSON, the events as JSONL, the messages or tool calls as CSV, or a report as HTML."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from agentops.base.http.csv_rows import csv_lines
from runs.exports.list_files import ExportFile, pages_of
from runs.exports.run_report import report_portions
from runs.models import AgentRun, RunNote
from runs.queries.json_columns import to_json
from runs.queries.json_lists import Listing
from runs.queries.record_columns import EVENTS, MESSAGE, TOOL_CALL, RunKey, of_run, of_run_in
from runs.queries.run_columns import RUN, runs_of, with_id
from timeline.display import clean

#: The member `format` of the JSON file. Its number changes if a member is removed or changes its meaning.
JSON_FORMAT = "agentops.run/1"
#: Messages or tool calls per portion: one can have megabytes.
LARGE_ROWS = 10
#: Events per portion.
SMALL_ROWS = 200
MESSAGE_COLUMNS = (
    *("position", "role", "step_number", "model", "finish_reason", "created_at", "rolled_back_at", "content"),
)
CALL_COLUMNS = (
    *("id", "call_id", "tool_name", "status", "step_number", "effect", "starts", "attempts", "duration_ms"),
    *("created_at", "started_at", "finished_at", "resolved_by", "child_run_id", "input", "output"),
)


class RunFormat(enum.StrEnum):
    """The formats of the file of a run."""

    #: One JSON object: the run with its notes, messages, tool calls and events.
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
    """Return a note as in the JSON file, with secrets masked."""
    return {
        "id": str(note.pk),
        "author": clean(note.author),
        "text": clean(note.text),
        "created_at": note.created_at.isoformat(),
        "edited_at": note.edited_at.isoformat() if note.edited_at else None,
    }


def _json(run: AgentRun) -> Iterator[str]:
    """Yield the JSON file in portions, with each list as it is read."""
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
        for texts in pages_of(listing, where, rows):
            yield separator + ",".join(texts)
            separator = ","
        yield "]" if separator == "," else f"{separator}]"
    yield "}\n"


def _events(run: AgentRun) -> Iterator[str]:
    for texts in pages_of(EVENTS, of_run_in(run.project_id, run.pk, "e.log_id"), SMALL_ROWS):
        yield "".join(f"{text}\n" for text in texts)


def _csv(listing: Listing, alias: str, columns: Sequence[str], run: AgentRun) -> Iterator[str]:
    """Yield the rows of a list as CSV. `alias`: the alias of the list's table in SQL."""
    yield csv_lines([columns])
    key = RunKey(run.pk, run.project_id, run.log.last_seq)
    for texts in pages_of(listing, of_run(key, alias), LARGE_ROWS):
        yield csv_lines([row[name] for name in columns] for row in map(json.loads, texts))


#: Format → suffix of the file's name, media type, and the function that generates the text.
_WRITERS: dict[RunFormat, tuple[str, str, Callable[[AgentRun], Iterator[str]]]] = {
    RunFormat.JSON: (".json", "application/json", _json),
    RunFormat.EVENTS: (".events.jsonl", "application/x-ndjson", _events),
    RunFormat.MESSAGES: (".messages.csv", "text/csv", partial(_csv, MESSAGE, "m", MESSAGE_COLUMNS)),
    RunFormat.TOOL_CALLS: (".tool-calls.csv", "text/csv", partial(_csv, TOOL_CALL, "t", CALL_COLUMNS)),
    RunFormat.HTML: (".html", "text/html", partial(report_portions, with_notes=True)),
}
