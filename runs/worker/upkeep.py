"""The upkeep of the site, as Celery tasks.

The clock sends each task every few seconds (agentops/site/timetable.py), and code that creates work sends its task
immediately (runs/lifecycle/wake.py). Several tasks may run at the same time, in any process of the site.
"""

from __future__ import annotations

import time
from contextlib import closing
from datetime import timedelta

from django.conf import settings

from agentops.accounts import mailing
from runs.actions.schedules import starting
from runs.alerts import evaluation, sending
from runs.alerts.conditions import STATES
from runs.external import live_sessions, recorded_ends
from runs.external.otlp import settling
from runs.external.uploads import execution
from runs.flows import runner
from runs.lifecycle import wake
from runs.models import AlertRule, Chore
from runs.upkeep import project_removal, retention, search_index
from runs.upkeep.group_removal import Removal
from runs.worker import worker
from runs.worker.exporting import exporting
from runs.worker.upkeep_call import CallTime, upkeep_task

#: A claim ends before the period of the clock does, so that a clock that fires slightly early does not skip a period.
SHARE = 0.8
#: Alert rules with expensive queries are evaluated once in this many periods.
STATES_EVERY = 3
HOURLY = timedelta(hours=1)
#: How long one process holds the search index after each batch, and the seconds until other processes try again.
INDEX_HELD, INDEX_AGAIN_S = timedelta(seconds=5), 2.0
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
def start_due(_: CallTime) -> bool:
    """Start the runs of due schedules, including those whose messages were lost."""
    starting.start_due_schedules()
    return False


@upkeep_task("runs.evaluate_alerts", "the evaluation of alert rules")
def evaluate_alerts(_: CallTime) -> bool:
    """Evaluate the alert rules, once a period for the whole site."""
    every = timedelta(seconds=settings.AGENTOPS_ALERTS_S)
    if not AlertRule.objects.enabled().exists() or not Chore.objects.take(EVALUATE, every=every * SHARE):
        return False
    kinds = set(AlertRule.Kind.values)
    if not Chore.objects.take(EVALUATE_STATES, every=every * (STATES_EVERY - 1 + SHARE)):
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
    exporting.look()
    return exporting.count_events(time_left.is_over)


@upkeep_task(wake.IMPORT, "the import of uploaded files")
def import_uploads(time_left: CallTime) -> bool:
    """Import uploaded files. An import that has begun is completed, however long it takes."""
    while execution.import_next(worker.is_stopping):
        if time_left.is_over():
            return True
    return False


@upkeep_task(wake.INDEX, "the search index")
def index_texts(time_left: CallTime) -> bool:
    """Bring the search index up to date. Only one process of the site does so at a time."""
    if not search_index.is_behind():
        return False
    if not Chore.objects.take(INDEX, every=INDEX_HELD):
        # The other process may have searched before the work of this message existed.
        wake.ask_now(wake.INDEX, countdown_s=INDEX_AGAIN_S)
        return False
    try:
        return _index(time_left)
    finally:
        Chore.objects.release(INDEX, every=INDEX_HELD)


def _index(time_left: CallTime) -> bool:
    began = time.monotonic()
    for _ in search_index.catch_up():
        if time_left.is_over():
            return True
        Chore.objects.keep(INDEX)
        # Rest as long as the batch took, because runs need the database too.
        time_left.rest(time.monotonic() - began)
        began = time.monotonic()
    if search_index.is_behind():
        # Some events were not settled, or were appended during the call.
        wake.ask_now(wake.INDEX, countdown_s=INDEX_AGAIN_S)
    return False


@upkeep_task(wake.DELETE_PROJECTS, "the deletion of projects")
def delete_projects(time_left: CallTime) -> bool:
    """Delete hidden projects. This may take hours, so it is split over many calls."""
    if _work_off(project_removal.remove_pending(), time_left):
        project_removal.release_claim()
        return True
    return False


@upkeep_task("runs.apply_retention", "the retention")
def apply_retention(time_left: CallTime) -> bool:
    """Apply the retention of all projects once a day, in as many calls as it takes."""
    if _work_off(retention.daily(), time_left):
        retention.release_claim()
        return True
    return False


@upkeep_task("runs.end_abandoned", "the search for abandoned runs")
def end_abandoned(time_left: CallTime) -> bool:
    """Once an hour, mark sessions without a follower as waiting, and end abandoned runs."""
    if not Chore.objects.take(ABANDONED, every=HOURLY * SHARE):
        return False
    try:
        live_sessions.let_forgotten_wait()
    finally:
        has_more = _end_abandoned(time_left)
    if has_more:
        Chore.objects.release(ABANDONED, every=HOURLY)
    return has_more


def _end_abandoned(time_left: CallTime) -> bool:
    while recorded_ends.end_abandoned():
        if time_left.is_over():
            return True
    return False


def _work_off(removal: Removal, time_left: CallTime) -> bool:
    """Work until the time is over, then rest equally long, because runs need the database too.

    Return whether work is left.
    """
    began = time.monotonic()
    with closing(removal):
        for _ in removal:
            time_left.rest(time.monotonic() - began)
            if time_left.is_over():
                return True
            began = time.monotonic()
    return False
