"""Sends events to sinks, and counts them for the metrics, in every worker, in threads of their own."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from runs.engine.shutdown import Shutdown
from runs.worker.housekeeping import going_on

if TYPE_CHECKING:
    from runs.telemetry.exporter import Exporter

#: Seconds between two looks for events to send, and for a first sink.
LOOK_S, IDLE_S = 1.0, 5.0
#: Seconds between two looks for files of runs that were deleted.
TIDY_S = 3600.0


def export(shutdown: Shutdown) -> None:
    """Send events to sinks until the process ends. Errors do not end the worker."""
    exporter: Exporter | None = None
    wait, tidied_at = LOOK_S, time.monotonic()
    try:
        while not shutdown.requested.wait(wait * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load only
            wait = IDLE_S
            with going_on("the export of events"):
                exporter = exporter or _begin(shutdown)
                wait = LOOK_S if exporter.look() else IDLE_S
            with going_on("the count of events"):
                _count_events()
            if time.monotonic() - tidied_at > TIDY_S:
                tidied_at = time.monotonic()
                with going_on("the deletion of exported files"):
                    _forget_removed_runs()
    finally:
        if exporter is not None:
            exporter.close()


def _begin(shutdown: Shutdown) -> Exporter:
    # Imported here, because a worker is ready sooner without it.
    from runs.telemetry import environment_sinks
    from runs.telemetry.exporter import Exporter

    environment_sinks.sync()
    return Exporter(shutdown.requested.is_set)


def _count_events() -> None:
    from runs.telemetry.metrics import metric_counts

    metric_counts.catch_up()


def _forget_removed_runs() -> None:
    from runs.telemetry.kinds.jsonl_sink import forget_removed_runs

    forget_removed_runs()
