"""Imports uploaded files in every worker, one at a time, in a thread of its own."""

from __future__ import annotations

from runs.external.uploads import execution
from runs.worker.housekeeping import going_on
from runs.worker.watch import Watch


def import_uploaded_files(watch: Watch) -> None:
    """Import uploaded files until the process ends. Errors do not end the worker."""
    while not watch.is_stopping():
        with going_on("the import of uploaded files"):
            while execution.import_next(watch.is_stopping) and not watch.is_stopping():
                pass
        watch.wait()
