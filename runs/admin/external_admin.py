"""Administration of data from external programs: runs, imports, counts, session transcripts. Read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, yes_filter
from agentops.admin_base.pages import RecordAdmin
from runs.admin.of_run import OF_RUN, RowsOfRunsAdmin, run_cell
from runs.models import ClaudeTranscript, ExternalRun, FileImport, ImportState, IngestCount


@admin.register(ExternalRun)
class ExternalRunAdmin(RowsOfRunsAdmin):
    """Additional data of external runs."""

    key = ("run_id",)
    id_fields = ("run_id",)
    text_fields = ("sender",)
    search_help_text = "Search by run ID or prefix of it, or by part of the sender."
    list_display = (
        run_cell(),
        cells.words("sender"),
        cells.plain("answer_from_seq", "answer received since event"),
        cells.moment("silent_since", "silent since"),
    )
    list_filter = (
        *OF_RUN,
        yes_filter("answering", "answer_from_seq", title="answer being received"),
        yes_filter("silent", "silent_since"),
    )
    facts = ((None, list_display),)

    def name_of(self, obj: ExternalRun) -> str:
        return f"External run {obj.run_id}"


@admin.register(FileImport)
class FileImportAdmin(RecordAdmin):
    """Imports of uploaded files. The content of the files is not shown."""

    names = ("import", "imports")
    audited = True
    text_fields = ("file_name", "created_by", "error")
    loaded = (
        *("file_name", "state", "format", "size", "new_runs", "new_events", "created_by", "created_at", "finished_at"),
        *("project_id", "project__slug"),
    )
    search_help_text = "Search by ID or prefix of it, or by part of the file name, the uploader or the error."
    list_display = (
        cells.words("file_name", "file"),
        cells.plain("state"),
        cells.words("format"),
        cells.plain("size", "bytes"),
        cells.plain("new_runs", "new runs"),
        cells.plain("new_events", "new events"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.words("created_by", "uploaded by"),
        cells.moment("created_at", "uploaded"),
        cells.moment("finished_at", "ended"),
    )
    list_filter = (ProjectFilter, choice_filter("state", ImportState.values))
    facts = (
        (
            None,
            (
                *list_display,
                cells.payload("error"),
                cells.plain("events"),
                cells.plain("continued_runs", "continued runs"),
                cells.plain("unchanged_runs", "unchanged runs"),
                cells.plain("attempts"),
                cells.moment("started_at", "started"),
                cells.moment("taken_until", "claimed until"),
                cells.computed("digest", "SHA-256", lambda row: bytes(row.sha256).hex()),
                cells.plain("id", "ID"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: FileImport) -> str:
        return cells.line(obj.file_name)


@admin.register(IngestCount)
class IngestCountAdmin(RecordAdmin):
    """Events by sender, minute and outcome."""

    key = ("project_id", "sender", "minute", "outcome")
    id_fields = ()
    text_fields = ("sender", "outcome")
    search_help_text = "Search by part of the sender or the outcome."
    list_display = (
        cells.words("sender"),
        cells.moment("minute"),
        cells.words("outcome"),
        cells.plain("count", "events"),
        cells.moment("last_at", "last event"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
    )
    list_filter = (ProjectFilter,)
    facts = ((None, list_display),)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.select_related("project").defer("project__settings")

    def name_of(self, obj: IngestCount) -> str:
        return cells.line(f"{obj.sender}, {obj.minute:%Y-%m-%d %H:%M}, {obj.outcome}")


@admin.register(ClaudeTranscript)
class ClaudeTranscriptAdmin(RecordAdmin):
    """Transcripts that claude-agent-sdk keeps here. Their entries, which contain secrets, are not shown."""

    names = ("session transcript", "session transcripts")
    text_fields = ("project_key", "session_id", "subpath")
    search_help_text = "Search by ID, or by part of the project key, the session ID or the sub-agent."
    list_display = (
        cells.words("session_id", "session"),
        cells.words("subpath", "sub-agent"),
        cells.words("project_key", "project key"),
        cells.plain("last_position", "entries"),
        cells.moment("modified_at", "last entry"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
    )
    list_filter = (ProjectFilter,)
    facts = ((None, list_display),)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.select_related("project").defer("project__settings")

    def name_of(self, obj: ClaudeTranscript) -> str:
        return cells.line(str(obj))
