"""Functions that a test runs in another thread."""

from __future__ import annotations

from django.db import connections

from runs.models import AgentRun
from runs.worker.worker import Worker


def drive_and_close(worker: Worker, run: AgentRun) -> None:
    """Drive a run, then close the connections of this thread."""
    try:
        worker.drive(run.pk)
    finally:
        connections.close_all()
