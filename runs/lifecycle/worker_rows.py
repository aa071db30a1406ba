"""The rows of the site's worker processes, and the queues that they serve."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

from agentops.base.database_clock import Now
from runs.models import WorkerProcess

#: Seconds between two calls of `announce` by a process.
EVERY_S = 5
#: Seconds after which the row of a process that has ended without `leave` is removed.
REMOVED_AFTER_S = 600


def announce(name: str, queues: Sequence[str], concurrency: int) -> None:
    """Store that this process, the worker `name`, is alive and serves `queues`. Repeated every EVERY_S.

    Rows of processes that have not been announced for `REMOVED_AFTER_S` are removed. Raises database errors.
    """
    process = WorkerProcess(
        name=name, host=socket.gethostname()[:64], pid=os.getpid(), queues=list(queues), concurrency=concurrency,
        started_at=Now(), seen_at=Now(),
    )  # fmt: skip
    renewed = ["queues", "concurrency", "seen_at"]
    WorkerProcess.objects.bulk_create([process], update_conflicts=True, unique_fields=["name"], update_fields=renewed)
    WorkerProcess.objects.filter(seen_at__lt=Now() - timedelta(seconds=REMOVED_AFTER_S)).delete()


def leave(name: str) -> None:
    """Remove the row of an ending process."""
    WorkerProcess.objects.filter(pk=name).delete()


def serving(queue: str) -> list[WorkerProcess]:
    """Return the living processes that serve a queue."""
    return [process for process in WorkerProcess.objects.alive().order_by("name") if queue in process.queues]
