"""Housekeeping in every worker, without beat: retention, deletions, mail, alerts, the search index, waiting traces."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from django.conf import settings
from django.db import Error, connection

from agentops.projects import mailing
from runs.alerts import evaluation, sending
from runs.alerts.conditions import STATES
from runs.engine.shutdown import Shutdown
from runs.external import live_sessions, recorded_ends
from runs.external.otlp import settling
from runs.models import AlertRule
from runs.upkeep import project_removal, retention, search_index
from runs.upkeep.group_removal import Removal

log = logging.getLogger(__name__)
#: Seconds before the first check: short, because some sites run for an hour a day.
FIRST_S, EVERY_S = 60.0, 3600.0
#: Seconds between two checks for projects to delete, and of work on them, before another process may go on.
PROJECTS_S, SLICE_S = 10.0, 20.0
#: Seconds between two checks for notifications to send.
MAIL_S = 10.0
#: Alert rules whose queries cost more are evaluated every so many times.
STATES_EVERY = 3
#: Seconds between two checks for alerts to send.
ALERT_DELIVERIES_S = 2.0
#: Seconds between two checks for traces and sessions whose entries have come.
SETTLE_S = 1.0
#: Seconds between two looks for texts to index, and after another process has indexed them.
INDEX_S, STAND_BACK_S = 1.0, 10.0


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """Log an error instead of raising it, so that a thread of the worker goes on, and close its connection."""
    try:
        yield
    except Error as error:
        log.warning("%s cannot use the database: %s", what, type(error).__name__)
    except Exception:
        log.exception("%s failed", what)
    finally:
        connection.close()


def tidy(shutdown: Shutdown) -> None:
    """Apply the retention every hour if it is due, let sessions wait, and end abandoned runs, until the process ends.

    Errors do not end the worker.
    """
    wait = FIRST_S
    while not shutdown.requested.wait(wait * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load only
        wait = EVERY_S
        with going_on("the retention"):
            _work_off(retention.daily(), shutdown)
        with going_on("the search for sessions that nobody follows"):
            live_sessions.let_forgotten_wait()
        with going_on("the search for abandoned runs"):
            while not shutdown.requested.is_set() and recorded_ends.end_abandoned():
                pass


def delete_projects(shutdown: Shutdown) -> None:
    """Delete hidden projects until the process ends. Runs in its own thread, because it may take hours."""
    while not shutdown.requested.wait(PROJECTS_S * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load only
        with going_on("the deletion of projects"):
            _work_off(project_removal.remove_pending(), shutdown, seconds=SLICE_S)


def _work_off(removal: Removal, shutdown: Shutdown, *, seconds: float = math.inf) -> None:
    """Work for so many seconds, rests included, and rest as long as it worked: runs need the database too."""
    began = time.monotonic()
    until = began + seconds
    with closing(removal):
        for _ in removal:
            if shutdown.requested.wait(time.monotonic() - began) or time.monotonic() > until:
                return
            began = time.monotonic()


def settle(shutdown: Shutdown) -> None:
    """File the entries of traces and sessions until the process ends. Runs in its own thread, apart from the sweep."""
    wait = SETTLE_S
    while not shutdown.requested.wait(wait * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load only
        wait = SETTLE_S
        with going_on("the filing of traces"):
            # There may be more than one turn of each project.
            wait = 0 if settling.settle_due() else SETTLE_S


def mail(shutdown: Shutdown) -> None:
    """Send notifications until the process ends. Runs in its own thread, because a mail server may be slow."""
    while not shutdown.requested.wait(MAIL_S * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load only
        with going_on("the mailing of notifications"):
            mailing.send_due(shutdown.requested.is_set)


def evaluate_alerts(shutdown: Shutdown) -> None:
    """Evaluate the alert rules until the process ends. Runs in its own thread: nothing else delays it."""
    for number in itertools.count():
        if shutdown.requested.wait(settings.AGENTOPS_ALERTS_S * random.uniform(0.8, 1.0)):  # noqa: S311
            return
        with going_on("the evaluation of alert rules"):
            kinds = set(AlertRule.Kind.values) - (STATES if number % STATES_EVERY else set())
            evaluation.evaluate(kinds)


def send_alerts(shutdown: Shutdown) -> None:
    """Send alerts to webhooks until the process ends. Runs in its own thread, because a receiver may be slow."""
    while not shutdown.requested.wait(ALERT_DELIVERIES_S * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load only
        with going_on("the sending of alerts"):
            sending.send_due(shutdown.requested.is_set)


def index_texts(shutdown: Shutdown) -> None:
    """Keep the search index up to date until the process ends. Errors do not end the worker."""
    wait = INDEX_S
    while not shutdown.requested.wait(wait * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load only
        wait = INDEX_S
        with going_on("the search index"):
            # While one process works on a backlog, the others need not do the same work.
            wait = INDEX_S if _index(shutdown) else STAND_BACK_S


def _index(shutdown: Shutdown) -> bool:
    """Index what is new. Return False if another process is doing that."""
    began = time.monotonic()
    for stored in search_index.catch_up():
        # Rest as long as it worked, because runs need the database too.
        if not stored or shutdown.requested.wait(time.monotonic() - began):
            return stored
        began = time.monotonic()
    return True
