"""Administration of recorded data: the rows of runs, logs with their events, imports and counts."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.admin.read_only import PROJECT, ReadOnlyAdmin, SiteRows
from runs import models
from timeline import tombstones
from timeline.models import Event, Log, Tombstone


class RowsOfRuns(ReadOnlyAdmin):
    """Rows of runs. The page of a run links to its rows.

    A table may have millions of rows. Therefore lists have no filters, and the order of the index that begins with the
    run.
    """

    #: The name of the column with the ID of the run.
    run_field: ClassVar[str] = "run_id"
    project_path = "run__project"
    list_filter: ClassVar[Any] = ()
    list_select_related: ClassVar[Any] = ()
    site_page: ClassVar[tuple[str, ...]] = ("runs:detail", "run_id")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, except rows of runs that are being deleted."""
        removing = tombstones.unfinished_tombstones().values("pk")
        return super().get_queryset(request).exclude(**{f"{self.run_field}__in": removing})


@admin.register(Log)
class LogAdmin(RowsOfRuns):
    """Logs. A log has the ID of its run."""

    run_field = "pk"
    project_path = "project"
    list_display = ("id", "project", "last_seq", "epoch", "last_event_at", "created_at")
    list_select_related = ("project",)
    site_page = ("runs:detail", "pk")


@admin.register(Event)
class EventAdmin(RowsOfRuns):
    run_field = "log_id"
    project_path = "log__project"
    list_display = ("seq", "log", "type", "step", "phase", "source", "epoch", "late", "sanitized", "ts")
    ordering = ("-log_id", "-seq")
    site_page = ("runs:event", "log_id", "seq")


@admin.register(models.AgentRunMessage)
class MessageAdmin(RowsOfRuns):
    names = ("message", "messages")
    list_display = ("position", "run", "role", "step_number", "model", "rolled_back_at", "created_at")
    ordering = ("-run_id", "-position")
    site_page = ("runs:message", "run_id", "pk")


@admin.register(models.AgentRunToolCall)
class ToolCallAdmin(RowsOfRuns):
    names = ("tool call", "tool calls")
    list_display = ("tool_name", "run", "status", "effect", "step_number", "attempts", "duration_ms", "started_at")
    ordering = ("-run_id", "-step_number")
    site_page = ("runs:call", "run_id", "pk")


@admin.register(models.RemoteStep)
class RemoteStepAdmin(RowsOfRuns):
    """The journal of remote runs. Sealed values are shown as they are stored, which only the process can read."""

    names = ("journaled step", "journaled steps")
    list_display = ("position", "run", "key", "kind", "name", "state", "attempt", "codec", "finished_at")
    ordering = ("-run_id", "-position")


@admin.register(models.RemoteStepPiece)
class RemoteStepPieceAdmin(RowsOfRuns):
    """Parts of values that are too large for one request."""

    names = ("piece of a step's value", "pieces of steps' values")
    list_display = ("index", "step_id", "run")
    ordering = ("-run_id", "-pk")


@admin.register(models.Approval)
class ApprovalAdmin(RowsOfRuns):
    list_display = ("tool_name", "run", "state", "requested_by", "decided_by", "created_at", "decided_at")
    list_filter = (PROJECT, "state")
    ordering = ("-run_id", "-pk")


@admin.register(models.Checkpoint)
class CheckpointAdmin(RowsOfRuns):
    list_display = ("step_number", "run", "last_message_position", "epoch", "created_at")
    ordering = ("-run_id", "-step_number")


@admin.register(models.Attempt)
class AttemptAdmin(RowsOfRuns):
    list_display = ("epoch", "run", "owner", "step_number", "end_reason", "claimed_at", "ended_at")
    ordering = ("-run_id", "-epoch")


@admin.register(models.CliSession)
class CliSessionAdmin(RowsOfRuns):
    list_display = ("id", "run", "resumed", "epoch", "created_at")
    ordering = ("-run_id", "-created_at")


@admin.register(models.TurnUsage)
class TurnUsageAdmin(RowsOfRuns):
    list_display = ("step_number", "run", "model", "input_tokens", "output_tokens", "cost_usd", "outcome", "created_at")
    ordering = ("-run_id", "-step_number")


@admin.register(models.RunError)
class RunErrorAdmin(RowsOfRuns):
    list_display = ("error_type", "run", "context", "step_number", "attempt", "created_at")
    ordering = ("-run_id", "-step_number")


@admin.register(models.RunCommand)
class RunCommandAdmin(RowsOfRuns):
    list_display = ("type", "run", "created_by", "received_at", "applied_at", "outcome", "key")


@admin.register(models.ExternalRun)
class ExternalRunAdmin(RowsOfRuns):
    list_display = ("pk", "sender", "answer_from_seq", "silent_since")
    search_fields = ("sender",)
    hidden = ("open_texts",)


@admin.register(Tombstone)
class TombstoneAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "reason", "removed_by", "removed_at", "finished_at")
    search_fields = ("reason", "removed_by")


@admin.register(models.FileImport)
class FileImportAdmin(ReadOnlyAdmin):
    """Imports of uploaded files, without their content."""

    list_display = ("file_name", "state", "format", "size", "new_runs", "new_events", "project", "created_at")
    list_filter = (PROJECT, "state")
    search_fields = ("file_name", "created_by", "error")
    site_page = ("runs:import", "project.slug", "pk")


@admin.register(models.IngestCount)
class IngestCountAdmin(ReadOnlyAdmin):
    list_display = ("sender", "minute", "outcome", "count", "last_at", "project")
    search_fields = ("sender", "outcome")
    site_page = ("runs:ingest", "project.slug")


@admin.register(models.ClaudeTranscript)
class ClaudeTranscriptAdmin(ReadOnlyAdmin):
    """Transcripts that claude-agent-sdk stores on this site, without their entries, which contain secrets."""

    list_display = ("session_id", "subpath", "project_key", "last_position", "modified_at", "project")
    search_fields = ("project_key", "session_id", "subpath")


@admin.register(models.GraphThread)
class GraphThreadAdmin(ReadOnlyAdmin):
    """Threads of graphs that are executed outside of runs, without their values, which only the graphs can read."""

    list_display = ("name", "modified_at", "project")
    search_fields = ("name",)


@admin.register(models.Chore)
class ChoreAdmin(SiteRows):
    list_display = ("name", "taken_at")
    search_fields = ("name",)
