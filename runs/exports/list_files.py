"""Lists of runs as a file, JSONL or CSV, newest run first; and how any file is generated while it is sent."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass

from django.http import StreamingHttpResponse

from agentops.accounts.models import Project
from agentops.base.http.csv_rows import csv_lines
from runs.queries.json_lists import Listing, RowSpan, Where, id_param
from runs.queries.run_columns import RUNS, runs_of
from runs.queries.run_lists.run_filters import Filters
from runs.queries.run_lists.run_order import NEWEST_FIRST, ListPosition
from runs.queries.run_lists.run_windows import RunSearch


@dataclass(frozen=True)
class ExportFile:
    """A file whose text is generated while it is read."""

    name: str
    media_type: str
    #: The text in portions of bounded size. It can be read only once.
    portions: Iterator[str]


def download(file: ExportFile) -> StreamingHttpResponse:
    """Return the response that sends a file portion by portion.

    Each portion is generated in a thread of the pool that serves all requests: see agentops.base.fair_shares.
    """
    response = StreamingHttpResponse(file.portions, content_type=file.media_type)
    response.headers["Content-Disposition"] = f'attachment; filename="{file.name}"'
    return response


#: Runs per portion.
BATCH = 500
COLUMNS = tuple(column.name for column in RUNS.columns)


class ListFormat(enum.StrEnum):
    """The formats of a list."""

    JSONL = "jsonl"
    CSV = "csv"


def export_list(project: Project, filters: Filters, file_format: ListFormat) -> ExportFile:
    """Return all matching runs as a file, with the columns of the API's list. The caller has checked Action.EXPORT."""
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
    """Yield the matching runs as JSON texts, masked, at most `BATCH` at a time."""
    search = RunSearch(project, filters, NEWEST_FIRST)
    position: ListPosition | None = None
    while True:
        result = search.find(position, BATCH)
        if result.ids:
            placeholders = ", ".join(["%s"] * len(result.ids))
            where = runs_of(project.pk).also(f"r.id IN ({placeholders})", *map(id_param, result.ids))
            yield RUNS.page(where, RowSpan(limit=BATCH)).items
        is_full = len(result.positions) == BATCH
        # A search that reached its limit of work before the end continues where it stopped.
        position = result.positions[-1] if is_full else result.stopped_at
        if position is None:
            return


def pages_of(listing: Listing, where: Where, limit: int) -> Iterator[list[str]]:
    """Yield the rows of a list as JSON texts, masked, at most `limit` at a time."""
    span = RowSpan(limit=limit)
    while True:
        rows = listing.page(where, span)
        if len(rows):
            yield rows.items
        if len(rows) < limit:
            return
        span = RowSpan(rows.position_of(-1), limit=limit)
