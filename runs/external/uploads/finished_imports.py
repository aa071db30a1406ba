"""Stores the result of a finished import, for uploads and for files that commands import without an upload."""

from __future__ import annotations

from typing import Any

from agentops.accounts.models import Project
from agentops.accounts.names import truncate
from agentops.base.database_clock import Now
from runs.external.import_runs import ImportReport
from runs.models import FileImport, ImportState
from timeline.display import clean

#: Runs of a file that are stored by their ID.
MAX_LISTED_RUNS = 100
MAX_NAME = 255


def result_of(report: ImportReport) -> dict[str, Any]:
    """Return the columns of a finished import."""
    continued = sum(1 for run in report.runs if report.events_of[run.pk] and run.pk not in report.opened)
    return {
        "state": ImportState.DONE,
        "taken_until": None,
        "finished_at": Now(),
        "new_events": report.events,
        "new_runs": report.new_runs,
        "continued_runs": continued,
        "unchanged_runs": len(report.runs) - report.new_runs - continued,
        "left_out": _masked(report.left_out.dump()),
        "run_ids": [str(run.pk) for run in report.runs[:MAX_LISTED_RUNS]],
        "error": "",
        "error_code": "",
    }


def note_import(
    project: Project,
    report: ImportReport,
    *,
    name: str,
    by: str,
    size: int = 0,
    sha256: bytes = b"",
    format_name: str = "",
) -> FileImport:
    """Record that a command imported a file, or started to follow it.

    `size` is in bytes. `size` is 0 and `sha256` is empty for several files, or for a growing file.
    """
    return FileImport.objects.create(
        project=project, file_name=truncate(clean(name), MAX_NAME), size=size, sha256=sha256, format=format_name,
        events=report.events + report.known_events, created_by=by, **result_of(report),
    )  # fmt: skip


def _masked(left_out: dict[str, Any] | None) -> dict[str, Any] | None:
    """Mask secrets in the report of omitted lines, which may repeat a value of the file."""
    if left_out is not None:
        left_out["lines"] = [{**line, "reason": clean(line["reason"])} for line in left_out["lines"]]
    return left_out
