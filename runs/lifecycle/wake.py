"""Tell workers that a run is ready. This is only a hint: the sweep finds a run whose hint was lost.

A worker in this process is told directly; those in other processes by a Celery task, if there is a broker.
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
#: Loaded with the first hint: importing Celery takes half a second, and most commands send none.
CELERY_APP = "agentops.celery.app"

_listeners: list[Callable[[], None]] = []


def subscribe(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener()` in this process whenever a run is ready. Returns a function that ends this."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def wake(run_id: UUID) -> None:
    """Send the hint after the current transaction has committed. Never raises."""
    transaction.on_commit(partial(_send, run_id), robust=True)


def _send(run_id: UUID) -> None:
    chaos.point("command.committed")
    for listener in tuple(_listeners):
        listener()
    if not settings.REDIS_URL:
        return  # a broker in memory reaches no other process: the sweep of a worker on this database finds the run
    send(run_id)
    chaos.point("command.hint_sent")


def send(run_id: UUID, *, passed: int = 0) -> None:
    """Send the hint to one of the workers. `passed` counts those that had no free slot. Never raises."""
    try:
        kwargs = {"passed": passed} if passed else {}
        import_string(CELERY_APP).send_task(ADVANCE, args=[str(run_id)], kwargs=kwargs, retry=False)
    except Exception as error:  # whatever a broken broker raises; the sweep finds the run
        log.warning("no hint sent for a queued run (%s)", type(error).__name__, extra={"run_id": str(run_id)})
