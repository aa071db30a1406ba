"""The runs that match the filters of a list as a file: JSONL or CSV, newest first."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator

from agentops.accounts.models import Project
from agentops.base.http.csv_rows import csv_lines
from runs.exports.export_file import ExportFile
from runs.queries.json_lists import RowSpan, id_param
from runs.queries.run_columns import RUNS, runs_of
from runs.queries.run_lists.run_filters import Filters
from runs.queries.run_lists.run_order import NEWEST_FIRST, ListPosition
from runs.queries.run_lists.run_windows import RunSearch

#: Runs per portion.
BATCH = 500
COLUMNS = tuple(column.name for column in RUNS.columns)


class ListFormat(enum.StrEnum):
    """The formats of a list."""

    JSONL = "jsonl"
    CSV = "csv"


def export_list(project: Project, filters: Filters, file_format: ListFormat) -> ExportFile:
    """Return all matching runs as a file, each with the columns of the API's list.

    The caller has checked Action.EXPORT.
    """
    name = f"runs-{project.slug}.{file_format}"
    if file_format is ListFormat.CSV:
        return ExportFile(name, "text/csv; charset=utf-8", _csv(project, filters))
    return ExportFile(name, "application/x-ndjson; charset=utf-8", _jsonl(project, filters))


def _jsonl(project: Project, filters: Filters) -> Iterator[str]:
    for texts in _batches(project, filters):
        yield "".join(f"{text}\n" for text in texts)


def _csv(project: Project, filters: Filters) -> Iterator[str]:
    yield csv_lines([COLUMNS])
    for texts in _batches(project, filters):
        yield csv_lines([row[name] for name in COLUMNS] for row in map(json.loads, texts))


def _batches(project: Project, filters: Filters) -> Iterator[list[str]]:
    """Yield the matching runs as JSON texts, masked."""
    search = RunSearch(project, filters, NEWEST_FIRST)
    position: ListPosition | None = None
    while True:
        found = search.find(position, BATCH)
        if found.ids:
            marks = ", ".join(["%s"] * len(found.ids))
            where = runs_of(project.pk).also(f"r.id IN ({marks})", *map(id_param, found.ids))
            yield RUNS.page(where, RowSpan(limit=BATCH)).items
        is_full = len(found.positions) == BATCH
        position = found.positions[-1] if is_full else found.stopped_at
        if position is None:
            return
