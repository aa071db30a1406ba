"""Tells workers that a run wants driving. A hint only: a lost one is found by the sweep.

May import Celery and Django; names the task by string, so that state never imports doors. A worker in this process
hears of it at once; those in others by a task, if there is a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from uuid import UUID

from celery import current_app
from django.conf import settings
from django.db import transaction

from runs import chaos

log = logging.getLogger(__name__)
ADVANCE = "runs.advance"

_listeners: list[Callable[[], None]] = []


def subscribe(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener()` in this process whenever a run wants driving; returns the way to stop."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def wake(run_id: UUID) -> None:
    """Send the hint after the current transaction has committed; never raises."""
    transaction.on_commit(partial(_send, run_id), robust=True)


def _send(run_id: UUID) -> None:
    chaos.point("CP30")
    for listener in tuple(_listeners):
        listener()
    if not settings.REDIS_URL:
        return  # a broker in memory reaches nobody else: the sweep of whoever works on this database finds the run
    try:
        current_app.send_task(ADVANCE, args=[str(run_id)], retry=False)
    except Exception as error:  # whatever a broken broker raises: the run is queued, the sweep finds it
        log.warning("no hint sent for a queued run (%s)", type(error).__name__, extra={"run_id": str(run_id)})
    chaos.point("CP31")
