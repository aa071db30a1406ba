"""Tell workers, by a Celery task, that a run is ready. Only a hint: the sweep finds a run whose hint was lost.

With Redis any worker may get the task. Without, the broker is in memory and reaches only a worker of this process.
"""

from __future__ import annotations

import logging
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

_worker_is_here = False


def expect_worker() -> None:
    """Send hints from now on, also without Redis: this process has a worker."""
    global _worker_is_here
    _worker_is_here = True


def wake(run_id: UUID) -> None:
    """Send the hint after the current transaction has committed. Never raises."""
    transaction.on_commit(partial(_send, run_id), robust=True)


def _send(run_id: UUID) -> None:
    chaos.point("command.committed")
    if not settings.REDIS_URL and not _worker_is_here:
        return  # nobody would get it: the sweep of a worker on this database finds the run
    send(run_id)
    chaos.point("command.hint_sent")


def send(run_id: UUID, *, passed: int = 0) -> None:
    """Send the hint to one of the workers. `passed` counts those that had no free slot. Never raises."""
    try:
        kwargs = {"passed": passed} if passed else {}
        import_string(CELERY_APP).send_task(ADVANCE, args=[str(run_id)], kwargs=kwargs, retry=False)
    except Exception as error:  # whatever a broken broker raises; the sweep finds the run
        log.warning("no hint sent for a queued run (%s)", type(error).__name__, extra={"run_id": str(run_id)})
