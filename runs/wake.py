"""Tells a worker that a run wants driving. A hint only: a lost one is found by the sweep.

May import Celery and Django; names the task by string, so that state never imports doors.
"""

from __future__ import annotations

import logging
from functools import partial
from uuid import UUID

from celery import current_app
from django.conf import settings
from django.db import transaction

from runs import chaos

log = logging.getLogger(__name__)
ADVANCE = "runs.advance"


def wake(run_id: UUID) -> None:
    """Send the hint after the current transaction has committed; never raises."""
    transaction.on_commit(partial(_send, run_id), robust=True)


def _send(run_id: UUID) -> None:
    chaos.point("CP30")
    if not settings.REDIS_URL:
        return  # a broker in memory reaches nobody: the sweep of whoever works on this database finds the run
    try:
        current_app.send_task(ADVANCE, args=[str(run_id)], retry=False)
    except Exception as error:  # whatever a broken broker raises: the run is queued, the sweep finds it
        log.warning("no hint sent for a queued run (%s)", type(error).__name__, extra={"run_id": str(run_id)})
    chaos.point("CP31")
