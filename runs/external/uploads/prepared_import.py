"""Imports of files: prepared outside a transaction, if possible, and stored in the caller's transaction.

On SQLite, a write transaction blocks all other writers. So the rows of a large file are created in a private database.
PostgreSQL locks only the runs of the file, and imports in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from django.db import connection

from agentops.accounts.models import Project
from runs.external import origins
from runs.external.import_runs import ImportReport, Progress, adopt_early_children, end_joined, import_file
from runs.external.importers.base import ImportedRun, Importer, ImportFile, Item
from runs.external.uploads.private_database import CallsOfOthers, PrivateDatabase

#: Minimum file size in bytes for a private database. A smaller import takes less than 0.1 s.
PREPARED_FROM = 128 * 1024


@contextmanager
def prepared(
    project: Project,
    file: ImportFile,
    importer: Importer,
    *,
    by: str,
    size: int = 0,
    progress: Progress = lambda report: None,
    watch: Callable[[], None] | None = None,
) -> Iterator[Callable[[], ImportReport]]:
    """Yield a function that imports a file in the caller's transaction. Raises `ImportRefused`, as the function does.

    `size`: the expanded size of the file in bytes, if known. `progress` and `watch`: see `import_file`.
    """
    directly = partial(import_file, project, file, importer, by=by, progress=progress, watch=watch)
    if connection.vendor != "sqlite" or connection.in_atomic_block or max(file.stored.size, size) < PREPARED_FROM:
        yield directly
        return
    with TemporaryDirectory(prefix="agentops-import-") as folder:
        private = PrivateDatabase(Path(folder) / "import.sqlite3")
        try:
            with private.in_use():
                bringing = _Bringing(importer, project, private)
                report = import_file(project, file, bringing, by=by, progress=progress, watch=watch)
        except CallsOfOthers:
            yield directly  # since rows of other runs also change
            return
        with private.attached():
            yield partial(_store, private, report, directly)


def _store(private: PrivateDatabase, report: ImportReport, directly: Callable[[], ImportReport]) -> ImportReport:
    if not private.copy():
        # Rare: a concurrent change, such as of a session that is being watched.
        return directly()
    for run in report.runs:
        if run.pk in report.opened:
            # They are not runs of the file, so the private database did not have them.
            report.family.adopted += adopt_early_children(run)
            origins.look_again(run)
    end_joined(report)
    return report


class _Bringing:
    """An importer that reports each run before it is imported."""

    def __init__(self, importer: Importer, project: Project, private: PrivateDatabase) -> None:
        self.name, self.title, self.detect = importer.name, importer.title, importer.detect
        self._importer, self._project, self._private = importer, project, private

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield the items of the importer. Raises `CallsOfOthers`."""
        for item in self._importer.read(file):
            if isinstance(item, ImportedRun):
                self._private.bring(self._project, item)
            elif item.call_names:
                self._private.check_calls(self._project, item)
            yield item
