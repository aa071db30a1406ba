"""Tell workers, by a Celery task, that a run is ready or a file was uploaded. Only a hint: workers find both anyway.

With Redis any worker may get the task. Without, the broker is in memory and reaches only a worker of this process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from uuid import UUID

from django.conf import settings
from django.utils.module_loading import import_string

from agentops.projects.after_commit import after_commit
from runs import chaos

log = logging.getLogger(__name__)
ADVANCE = "runs.advance"
IMPORT = "runs.import_uploads"
FLOWS = "runs.advance_flows"
#: Loaded with the first hint: importing Celery takes half a second, and most commands send none.
CELERY_APP = "agentops.celery.app"

_worker_is_here = False


def expect_worker() -> None:
    """Send hints from now on, also without Redis: this process has a worker."""
    global _worker_is_here
    _worker_is_here = True


def wake(run_id: UUID) -> None:
    """Send the hint after the current transaction has committed. Never raises."""
    after_commit(_send, run_id)


def wake_importer() -> None:
    """Wake a worker to import uploaded files, once the current transaction is committed. Never raises."""
    after_commit(_send_import)


def wake_flows() -> None:
    """Wake a worker to look at flow runs, once the current transaction is committed. Never raises."""
    after_commit(_send_flows)


def _send_flows() -> None:
    chaos.point("flow.hint_due")
    if settings.REDIS_URL or _worker_is_here:
        _send_task(FLOWS, "no hint sent for a flow run (%s)")


def _send_import() -> None:
    if settings.REDIS_URL or _worker_is_here:
        _send_task(IMPORT, "no hint sent for an uploaded file (%s)")


def _send(run_id: UUID) -> None:
    chaos.point("command.committed")
    if not settings.REDIS_URL and not _worker_is_here:
        return  # nobody would get it: the sweep of a worker on this database finds the run
    send(run_id)
    chaos.point("command.hint_sent")


def send(run_id: UUID, *, passed: int = 0) -> None:
    """Send the hint to one of the workers. `passed` counts those that had no free slot. Never raises."""
    kwargs = {"passed": passed} if passed else {}
    _send_task(ADVANCE, "no hint sent for a queued run (%s)", args=[str(run_id)], kwargs=kwargs)


def _send_task(name: str, failure: str, *, args: Sequence[str] = (), kwargs: Mapping[str, int] | None = None) -> None:
    try:
        import_string(CELERY_APP).send_task(name, args=args, kwargs=kwargs, retry=False)
    except Exception as error:  # whatever a broken broker raises; the sweep finds the run
        log.warning(failure, type(error).__name__, extra={"run_id": args[0]} if args else {})
