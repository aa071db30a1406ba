"""Advances flow runs in every worker, in a thread of its own: also without a broker, and while all slots are taken."""

from __future__ import annotations

from runs.flows.runner import advancing
from runs.worker.housekeeping import going_on
from runs.worker.watch import Watch


def advance_flows(watch: Watch) -> None:
    """Advance flow runs that are due until the process ends. Errors do not end the worker."""
    while not watch.is_stopping():
        with going_on("the advance of flow runs"):
            while advancing.advance_due(watch.is_stopping):
                pass
        watch.wait()
