"""Imports uploaded files, one at a time. Workers call this.

The import, its result and the deletion of the content are one transaction. A worker that dies stores nothing, and the
next worker starts again. After the commit nothing is repeated. A cancelled import loses its claim; its worker detects
this after the next part of the work.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from tempfile import TemporaryFile
from typing import NamedTuple

from django.db import DatabaseError, transaction

from agentops.accounts.names import truncate
from agentops.base.database_clock import Now
from agentops.base.redaction import project_scope
from runs.external.event_input import RejectedEvent
from runs.external.import_runs import ImportReport, again_if_opened
from runs.external.importers import formats
from runs.external.importers.base import ImportedRun, Importer, ImportFile, ImportRefused
from runs.external.importers.import_budget import budget_of, read_counted
from runs.external.importers.reading.stored_bytes import StoredBytes
from runs.external.uploads import import_claims
from runs.external.uploads.finished_imports import result_of
from runs.external.uploads.import_claims import ClaimCheck, ClaimLost
from runs.external.uploads.import_progress import ProgressReport
from runs.external.uploads.prepared_import import prepared
from runs.models import FileImport, FileImportPiece, ImportState
from timeline.display import clean

log = logging.getLogger(__name__)
#: Attempts interrupted by the death of the worker or the database, after which an import fails.
MAX_ATTEMPTS = 5
MAX_ERROR = 2000
IsStopping = Callable[[], bool]


class ContentDamaged(Exception):
    """The content does not match the checksum of the upload."""


class ImportInterrupted(Exception):
    """This worker is shutting down."""


def import_next(is_stopping: IsStopping = lambda: False) -> bool:
    """Import the next uploaded file. Returns False if no file waits.

    Raises `DatabaseError`: then nothing is stored, and the import is tried again when the claim has expired.
    """
    taken = import_claims.take()
    if taken is None:
        return False
    try:
        with project_scope.limited_to(taken.project_id):
            _attempt(taken, is_stopping)
    except ClaimLost:
        log.warning("an import was cancelled, or another worker has it", extra={"import_id": str(taken.pk)})
    return True


def _attempt(taken: FileImport, is_stopping: IsStopping) -> None:
    try:
        with import_claims.renewing(taken):
            _import(taken, is_stopping)
    except ImportInterrupted:
        import_claims.release(taken)
    except ContentDamaged:
        text = "its content in the database is not what was uploaded: upload it again"
        _end_without_runs(taken, ImportState.FAILED, f"{taken.file_name}: {text}")
    except ImportRefused as refusal:
        _end_without_runs(taken, ImportState.REFUSED, str(refusal), code=refusal.code)
    except (ClaimLost, DatabaseError):
        raise
    except Exception:
        log.exception("unexpected error in an import", extra={"import_id": str(taken.pk)})
        text = "an unexpected error, which is in the log of the worker, ended the import"
        _end_without_runs(taken, ImportState.FAILED, f"{taken.file_name}: {text}")


def _import(taken: FileImport, is_stopping: IsStopping) -> None:
    if taken.attempts > MAX_ATTEMPTS:
        return _end_without_runs(
            taken,
            ImportState.FAILED,
            f"{taken.file_name}: the import was started {MAX_ATTEMPTS} times, and its worker ended each time",
        )
    watch = _Watch(taken, is_stopping)
    file = ImportFile(taken.file_name, _content(taken), is_strict=taken.is_strict)
    importer = formats.find(file, taken.format)
    # Before the transaction, so that an invalid file takes no lock, and the progress has a total.
    expanded = _read(importer, file, watch)
    import_claims.update(taken, events=expanded.events, format=importer.name)
    progress = partial(_report, ProgressReport(taken.pk))
    importing = partial(
        prepared, taken.project, file, importer,
        by=taken.created_by, size=expanded.size, progress=progress, watch=watch,
    )  # fmt: skip
    return again_if_opened(partial(_store, taken, importing), file.refuse)


class _Watch:
    """Interrupts an import if its worker stops, or if it was cancelled."""

    def __init__(self, taken: FileImport, is_stopping: IsStopping) -> None:
        self._is_stopping, self._check_claim = is_stopping, ClaimCheck(taken)

    def __call__(self) -> None:
        """Raise `ImportInterrupted` or `ClaimLost`."""
        self.check_stop()
        self._check_claim()

    def check_stop(self) -> None:
        """Raise `ImportInterrupted` if the worker is stopping. No query."""
        if self._is_stopping():
            raise ImportInterrupted


class _Expanded(NamedTuple):
    """The expanded size of a file."""

    events: int
    #: In bytes.
    size: int


def _store(taken: FileImport, importing: Callable[[], AbstractContextManager[Callable[[], ImportReport]]]) -> None:
    with importing() as store, transaction.atomic():
        report = store()
        import_claims.update(taken, **result_of(report))
        taken.delete_content()


def _content(taken: FileImport) -> StoredBytes:
    """Copy the content to a temporary file, which is deleted with the last reference. Raises `ContentDamaged`."""
    pieces = FileImportPiece.objects.filter(file_import=taken).order_by("number").values_list("content", flat=True)
    digest = hashlib.sha256()
    with TemporaryFile() as copy:
        for piece in pieces.iterator(chunk_size=1):
            digest.update(piece)
            copy.write(piece)
        copy.flush()
        if digest.digest() != bytes(taken.sha256):
            raise ContentDamaged
        return StoredBytes.on_disk(os.dup(copy.fileno()))


def _read(importer: Importer, file: ImportFile, watch: _Watch) -> _Expanded:
    """Read the whole file. Raises `ImportRefused`."""
    events = 0
    try:
        with budget_of(file, watch) as budget:
            for item in read_counted(importer, file):
                events += not isinstance(item, ImportedRun)
                watch.check_stop()
    except RejectedEvent as error:
        raise file.refuse(error.detail, pointer=error.pointer) from error
    return _Expanded(events, budget.spent)


def _report(progress: ProgressReport, report: ImportReport) -> None:
    progress.report(report.events + report.known_events)


def _end_without_runs(taken: FileImport, state: ImportState, error: str, *, code: str = "") -> None:
    """End an import without storing runs, and delete the content of its file."""
    # The text begins with the place in the file; a value of the file may follow.
    text = truncate(clean(error), MAX_ERROR)
    with transaction.atomic():
        import_claims.update(taken, state=state, taken_until=None, finished_at=Now(), error=text, error_code=code)
        taken.delete_content()
