"""Deletes old records other than runs: imports, ingest counts, alerts, deliveries, transcripts, threads of graphs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.models import (
    Alert,
    AlertMute,
    ClaudeTranscript,
    Delivery,
    FileImport,
    GraphThread,
    ImportState,
    IngestCount,
    ScheduleStart,
)

#: How long the content of a file is kept if no worker imports it.
UPLOAD_KEPT = timedelta(days=7)
#: How long the record of an import is kept. The project's retention applies to its runs.
IMPORT_KEPT = timedelta(days=90)
#: How long the counts of ingested events are kept.
COUNTS_KEPT = timedelta(days=7)
#: How long an alert is kept after it was closed.
ALERTS_KEPT = timedelta(days=90)
#: How long a delivery is kept after it was sent or given up.
DELIVERIES_KEPT = timedelta(days=30)
#: How long the outcomes of a schedule's due times are kept. The project's retention applies to their runs.
STARTS_KEPT = timedelta(days=30)
#: Rows per DELETE statement.
BATCH = 1000
#: The same for transcripts and threads, which are deleted with their entries and values. These may be thousands.
SESSIONS = 20


def end_abandoned_imports() -> int:
    """End the imports that were not finished within `UPLOAD_KEPT`, and delete their content. Returns how many."""
    abandoned = FileImport.objects.free().filter(created_at__lt=Now() - UPLOAD_KEPT)
    ended = 0
    for file_import in abandoned.order_by("pk").only("pk"):
        with transaction.atomic():
            error = f"not imported within {UPLOAD_KEPT.days} days: is a worker running?"
            # Conditional, because a worker may claim it at this moment.
            if abandoned.filter(pk=file_import.pk).update(
                state=ImportState.FAILED, taken_until=None, finished_at=Now(), error=error
            ):
                file_import.delete_content()
                ended += 1
    return ended


def delete_batch() -> int:
    """Delete a batch of old imports, counts, alerts, mutes, starts and deliveries. Returns how many; 0: none left."""
    imports = FileImport.objects.exclude(state__in=[ImportState.WAITING, ImportState.RUNNING])
    starts = ScheduleStart.objects.exclude(outcome=ScheduleStart.Outcome.WAITING)
    ended = Delivery.objects.exclude(state=Delivery.State.WAITING)
    old = (
        imports.filter(created_at__lt=Now() - IMPORT_KEPT).order_by("created_at"),
        IngestCount.objects.filter(minute__lt=Now() - COUNTS_KEPT).order_by("minute"),
        Alert.objects.filter(closed_at__lt=Now() - ALERTS_KEPT).order_by("closed_at"),
        AlertMute.objects.filter(until__lt=Now()).order_by("until"),
        starts.filter(decided_at__lt=Now() - STARTS_KEPT).order_by("decided_at"),
        ended.filter(created_at__lt=Now() - DELIVERIES_KEPT).order_by("created_at"),
    )
    return sum(_delete(rows) for rows in old)


def delete_sessions() -> int:
    """Delete a batch of transcripts and of threads of graphs that did not change within the retention of their project.

    Returns how many; 0 if none is left.
    """
    deleted = 0
    for project in Project.objects.filter(retention_days__isnull=False):
        assert project.retention_days is not None  # filtered
        cutoff = Now() - timedelta(days=project.retention_days)
        for model in (ClaudeTranscript, GraphThread):
            old = model._default_manager.filter(project=project, modified_at__lt=cutoff).order_by("modified_at")
            deleted += _delete(old, SESSIONS)
    return deleted


def _delete(rows: QuerySet[Any], limit: int = BATCH) -> int:
    """Delete the first of these rows, and return how many. Rows that others are changing are left out."""
    with transaction.atomic():
        # Locked, because a session that is continued now is no longer old.
        ids = list(rows.select_for_update(skip_locked=True).values_list("pk", flat=True)[:limit])
        if ids:
            rows.model._base_manager.filter(pk__in=ids).delete()
    return len(ids)
