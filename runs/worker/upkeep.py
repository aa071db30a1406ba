"""The upkeep of the site, as Celery tasks, and the exporter of this process.

The clock sends each task every few seconds (agentops/site/computed_settings.py), and code that creates work sends the
task for it immediately (runs/lifecycle/wake.py). Several tasks may run at the same time, in any process of the site.
The exporter's threads and connections to receivers last as long as the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings

from agentops.accounts import mailing
from runs.actions.schedules import starting
from runs.alerts import evaluation, sending
from runs.alerts.conditions import STATES
from runs.external import import_execution, live_sessions, recorded_ends
from runs.external.otlp import settling
from runs.flows import runner
from runs.lifecycle import wake
from runs.lifecycle.wake import EXPORT, ask_now
from runs.models import AlertRule, Chore
from runs.upkeep import project_removal, retention, search_index
from runs.upkeep.group_removal import Removal
from runs.worker import worker
from runs.worker.upkeep_call import CallTime, logged_errors, upkeep_task

if TYPE_CHECKING:
    from runs.telemetry.exporter import Exporter


#: Seconds between two searches for files of deleted runs on the disk of this process.
TIDY_S = 3600.0


class Exporting:
    """The exporter of this process, which is created when it is first needed, and its upkeep."""

    def __init__(self) -> None:
        self._pid = 0
        self._exporter: Exporter | None = None
        self._tidied_at = 0.0
        self._lock = threading.Lock()

    def start_due(self) -> None:
        """Start exports that are due. Threads of the exporter send them, so a slow receiver does not block a task."""
        with self._lock:
            exporter = self._current()
        exporter.look()
        if not exporter.has_settled:
            # Some events were committed out of order, after events that are not committed yet.
            ask_now(EXPORT, countdown_s=1.0)
        if time.monotonic() - self._tidied_at > TIDY_S:
            self._tidied_at = time.monotonic()
            with logged_errors("the deletion of exported files"):
                from runs.telemetry.jsonl_sink import forget_removed_runs

                forget_removed_runs()

    def count_events(self, is_over: Callable[[], bool]) -> bool:
        """Count events for the metrics until none is left or the time is over. Returns whether some may be left."""
        # Imported here, so that a worker is ready sooner.
        from runs.telemetry import metric_counts

        metric_counts.catch_up(is_over)
        return is_over()

    def close(self) -> None:
        """Wait for the requests in progress, and close the exporter."""
        if self._exporter is not None and self._pid == os.getpid():
            self._exporter.close()
            self._exporter = None

    def _current(self) -> Exporter:
        """Return the exporter. A forked child creates a new one, because it has no threads of its parent."""
        if self._exporter is None or self._pid != os.getpid():
            from runs.telemetry import sink_changes
            from runs.telemetry.exporter import Exporter

            sink_changes.store_environment_sinks()
            self._exporter, self._pid = Exporter(worker.is_stopping, after_job=lambda: ask_now(EXPORT)), os.getpid()
            self._tidied_at = time.monotonic()
        return self._exporter


#: The exporter of this process.
exporting = Exporting()


#: A claim of a periodic task lasts this share of the clock's period: a clock that is slightly early must not find the
#: last claim still valid, and skip a period.
CLAIM_SHARE = 0.8
#: Alert rules of the kinds `STATES`, which have expensive queries, are evaluated once in this many periods.
STATES_EVERY = 3
HOURLY = timedelta(hours=1)
#: How long a process claims the search index, again with each batch.
INDEX_HELD = timedelta(seconds=5)
#: Seconds until another process tries to index.
INDEX_AGAIN_S = 2.0
#: The names of the claims.
EVALUATE, EVALUATE_STATES, ABANDONED, INDEX = "evaluate_alerts", "evaluate_alert_states", "end_abandoned", "index_texts"


@upkeep_task(wake.SETTLE, "the filing of traces")
def settle_traces(time_left: CallTime) -> bool:
    """File the due entries of traces and sessions, and plan the next call."""
    while settling.settle_due():
        if time_left.is_over():
            return True
    if (wait_s := settling.next_due_s()) is not None:
        wake.ask_now(wake.SETTLE, countdown_s=wait_s)
    return False


@upkeep_task(wake.FLOWS, "the advance of flow runs")
def advance_flows(time_left: CallTime) -> bool:
    """Advance flow runs that are due."""
    while runner.advance_due(time_left.is_over):
        pass
    return time_left.is_over()


@upkeep_task("runs.start_due", "the start of schedules")
def start_due(time_left: CallTime) -> bool:
    """Start the runs of due schedules, including those whose messages were lost."""
    starting.start_due_schedules(time_left.is_over)
    return time_left.is_over()


@upkeep_task("runs.evaluate_alerts", "the evaluation of alert rules")
def evaluate_alerts(_: CallTime) -> bool:
    """Evaluate the alert rules, once a period for the whole site."""
    every = timedelta(seconds=settings.AGENTOPS_ALERTS_S)
    if not AlertRule.objects.enabled().exists() or not Chore.objects.take(EVALUATE, every=every * CLAIM_SHARE):
        return False
    kinds = set(AlertRule.Kind.values)
    if not Chore.objects.take(EVALUATE_STATES, every=every * (STATES_EVERY - 1 + CLAIM_SHARE)):
        kinds -= STATES
    evaluation.evaluate(kinds)
    return False


@upkeep_task(wake.SEND_ALERTS, "the sending of alerts")
def send_alerts(time_left: CallTime) -> bool:
    """Send alerts to webhooks."""
    sending.send_due(time_left.is_over)
    return time_left.is_over()


@upkeep_task(wake.SEND_MAIL, "the mailing of notifications")
def send_mail(time_left: CallTime) -> bool:
    """Send notifications by e-mail, if the site has a mail server."""
    if not settings.AGENTOPS_EMAIL:
        return False
    mailing.send_due(worker.is_stopping, is_over=time_left.is_over)
    return time_left.is_over()


@upkeep_task(wake.EXPORT, "the export of events")
def export_events(time_left: CallTime) -> bool:
    """Start due exports to sinks in the exporter of this process, and count events."""
    exporting.start_due()
    return exporting.count_events(time_left.is_over)


@upkeep_task(wake.IMPORT, "the import of uploaded files")
def import_uploads(time_left: CallTime) -> bool:
    """Import uploaded files. An import that has begun is completed, however long it takes."""
    while import_execution.import_next(worker.is_stopping):
        if time_left.is_over():
            return True
    return False


@upkeep_task(wake.INDEX, "the search index")
def index_texts(time_left: CallTime) -> bool:
    """Bring the search index up to date. Only one process of the site does this at a time."""
    if not search_index.is_behind():
        return False
    if not Chore.objects.take(INDEX, every=INDEX_HELD):
        # The other process may have looked for events before those that this message is about were appended.
        wake.ask_now(wake.INDEX, countdown_s=INDEX_AGAIN_S)
        return False
    try:
        return _index(time_left)
    finally:
        Chore.objects.release(INDEX, every=INDEX_HELD)


def _index(time_left: CallTime) -> bool:
    """Index batch by batch, and keep the claim. Returns whether work is left."""
    began = time.monotonic()
    for _ in search_index.catch_up():
        if time_left.is_over():
            return True
        Chore.objects.keep(INDEX)
        # Rest as long as the batch took, because runs need the database too.
        time_left.rest(time.monotonic() - began)
        began = time.monotonic()
    if search_index.is_behind():
        # Some events were not settled yet, or were appended during this call.
        wake.ask_now(wake.INDEX, countdown_s=INDEX_AGAIN_S)
    return False


@upkeep_task(wake.DELETE_PROJECTS, "the deletion of projects")
def delete_projects(time_left: CallTime) -> bool:
    """Delete hidden projects. This may take hours, so it is split over many calls."""
    if _remove_in_batches(project_removal.remove_pending(), time_left):
        project_removal.release_claim()
        return True
    return False


@upkeep_task("runs.apply_retention", "the retention")
def apply_retention(time_left: CallTime) -> bool:
    """Apply the retention of all projects once a day, in as many calls as it takes."""
    if _remove_in_batches(retention.daily(), time_left):
        retention.release_claim()
        return True
    return False


@upkeep_task("runs.end_abandoned", "the search for abandoned runs")
def end_abandoned(time_left: CallTime) -> bool:
    """Once an hour, mark sessions that no `agentops watch` follows any more as waiting, and end abandoned runs."""
    if not Chore.objects.take(ABANDONED, every=HOURLY * CLAIM_SHARE):
        return False
    try:
        live_sessions.let_forgotten_wait()
    finally:
        has_more = _end_all_abandoned(time_left)
    if has_more:
        Chore.objects.release(ABANDONED, every=HOURLY)
    return has_more


def _end_all_abandoned(time_left: CallTime) -> bool:
    """End abandoned runs, batch by batch, until none is left or the time is over. Returns whether some may be left."""
    while recorded_ends.end_abandoned():
        if time_left.is_over():
            return True
    return False


def _remove_in_batches(removal: Removal, time_left: CallTime) -> bool:
    """Delete batch by batch, until nothing is left or the time is over. Returns whether work is left.

    Rests after each batch as long as the batch took, because runs need the database too.
    """
    began = time.monotonic()
    with closing(removal):
        for _ in removal:
            time_left.rest(time.monotonic() - began)
            if time_left.is_over():
                return True
            began = time.monotonic()
    return False
