"""Tells workers that a run wants driving. A hint only: a lost one is found by the sweep.

A worker in this process
hears of it at once; those in others by a task, if there is a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

from runs import chaos

log = logging.getLogger(__name__)
ADVANCE = "runs.advance"
#: Loaded by the first hint that is sent: Celery takes half a second, and most commands send none.
CELERY_APP = "agentops.celery.app"

_listeners: list[Callable[[], None]] = []


def subscribe(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener()` in this process whenever a run wants driving; returns the way to stop."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def wake(run_id: UUID) -> None:
    """Send the hint after the current transaction has committed; never raises."""
    transaction.on_commit(partial(_send, run_id), robust=True)


def _send(run_id: UUID) -> None:
    chaos.point("command.committed")
    for listener in tuple(_listeners):
        listener()
    if not settings.REDIS_URL:
        return  # a broker in memory reaches nobody else: the sweep of whoever works on this database finds the run
    send(run_id)
    chaos.point("command.hint_sent")


def send(run_id: UUID, *, passed: int = 0) -> None:
    """Send the hint to one of the workers; `passed`: how many had no free slot for it. Never raises."""
    try:
        kwargs = {"passed": passed} if passed else {}
        import_string(CELERY_APP).send_task(ADVANCE, args=[str(run_id)], kwargs=kwargs, retry=False)
    except Exception as error:  # whatever a broken broker raises: the run is queued, the sweep finds it
        log.warning("no hint sent for a queued run (%s)", type(error).__name__, extra={"run_id": str(run_id)})
