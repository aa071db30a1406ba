"""Imports uploaded files in a worker, one at a time.

The import, its result and the deletion of the file's content are one transaction. If a worker dies, nothing of the
import is stored, and another worker starts it again. A cancelled import loses its claim; its worker detects this after
the next part of the work.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from tempfile import TemporaryFile

from django.db import DatabaseError, transaction

from agentops.accounts.names import truncate
from agentops.base.database_clock import Now
from agentops.base.redaction import project_scope
from runs.external import import_states
from runs.external.event_input import RejectedEvent
from runs.external.import_runs import ImportReport, retry_conflicts
from runs.external.import_states import ClaimCheck, ClaimLost, ProgressReport, result_of
from runs.external.importers import formats
from runs.external.importers.base import ImportedRun, Importer, ImportFile, ImportRefused
from runs.external.importers.guarded_reading import budget_of, read_within_budget
from runs.external.importers.stored_lines import StoredBytes
from runs.external.prepared_import import prepared
from runs.models import FileImport, FileImportPiece, ImportState
from timeline.display import clean

log = logging.getLogger(__name__)
#: Attempts, all of them ended by the death of the worker or an error of the database, after which an import fails.
MAX_ATTEMPTS = 5
#: Maximum characters of an error message.
MAX_ERROR = 2000
IsStopping = Callable[[], bool]


class ContentDamaged(Exception):
    """The content does not match the checksum of the upload."""


class ImportInterrupted(Exception):
    """This worker is shutting down."""


def import_next(is_stopping: IsStopping = lambda: False) -> bool:
    """Import the next uploaded file. Returns False if no file waits.

    After a `DatabaseError`, which is raised, the import is tried again when the claim has expired.
    """
    claimed = import_states.claim_next()
    if claimed is None:
        return False
    try:
        with project_scope.limited_to(claimed.project_id):
            _attempt(claimed, is_stopping)
    except ClaimLost:
        log.warning("an import was cancelled, or another worker has it", extra={"import_id": str(claimed.pk)})
    return True


def _attempt(claimed: FileImport, is_stopping: IsStopping) -> None:
    """Import a claimed file, and end the import if it fails. Raises `ClaimLost` and `DatabaseError`."""
    try:
        with import_states.renewing(claimed):
            _import(claimed, is_stopping)
    except ImportInterrupted:
        import_states.release(claimed)
    except ContentDamaged:
        text = "its content in the database is not what was uploaded: upload it again"
        _end_without_runs(claimed, ImportState.FAILED, f"{claimed.file_name}: {text}")
    except ImportRefused as refusal:
        _end_without_runs(claimed, ImportState.REFUSED, str(refusal), code=refusal.code)
    except (ClaimLost, DatabaseError):
        raise
    except Exception:
        log.exception("unexpected error in an import", extra={"import_id": str(claimed.pk)})
        text = "an unexpected error, which is in the log of the worker, ended the import"
        _end_without_runs(claimed, ImportState.FAILED, f"{claimed.file_name}: {text}")


def _import(claimed: FileImport, is_stopping: IsStopping) -> None:
    if claimed.attempts > MAX_ATTEMPTS:
        text = f"the import was started {MAX_ATTEMPTS} times, and its worker ended each time"
        _end_without_runs(claimed, ImportState.FAILED, f"{claimed.file_name}: {text}")
        return
    watch = _Watch(claimed, is_stopping)
    file = ImportFile(claimed.file_name, _content(claimed), is_strict=claimed.is_strict)
    importer = formats.find(file, claimed.format)
    # The whole file is read before the transaction: an invalid file takes no lock, and the progress has a total.
    events, size = _measure(importer, file, watch)
    import_states.update(claimed, events=events, format=importer.name)
    progress = ProgressReport(claimed.pk).report
    importing = partial(
        prepared, claimed.project, file, importer, by=claimed.created_by, size=size, progress=progress, watch=watch
    )
    retry_conflicts(partial(_store, claimed, importing), file.refuse)


class _Watch:
    """Interrupts an import if its worker is stopping, or if the import was cancelled."""

    def __init__(self, claimed: FileImport, is_stopping: IsStopping) -> None:
        self._is_stopping, self._check_claim = is_stopping, ClaimCheck(claimed)

    def __call__(self) -> None:
        """Raise `ImportInterrupted` or `ClaimLost`."""
        self.check_stop()
        self._check_claim()

    def check_stop(self) -> None:
        """Raise `ImportInterrupted` if the worker is stopping. Takes no query."""
        if self._is_stopping():
            raise ImportInterrupted


def _store(claimed: FileImport, importing: Callable[[], AbstractContextManager[Callable[[], ImportReport]]]) -> None:
    """Store the import and its result, and delete the content, in one transaction. `importing`: see `prepared`."""
    with importing() as store, transaction.atomic():
        report = store()
        import_states.update(claimed, **result_of(report))
        claimed.delete_content()


def _content(claimed: FileImport) -> StoredBytes:
    """Return the uploaded content, in a temporary file that exists as long as the result. Raises `ContentDamaged`."""
    pieces = FileImportPiece.objects.filter(file_import=claimed).order_by("number").values_list("content", flat=True)
    digest = hashlib.sha256()
    with TemporaryFile() as copy:
        for piece in pieces.iterator(chunk_size=1):
            digest.update(piece)
            copy.write(piece)
        copy.flush()
        if digest.digest() != bytes(claimed.sha256):
            raise ContentDamaged
        return StoredBytes.on_disk(os.dup(copy.fileno()))


def _measure(importer: Importer, file: ImportFile, watch: _Watch) -> tuple[int, int]:
    """Read the whole file, and return its number of events and its expanded size in bytes. Raises `ImportRefused`."""
    events = 0
    try:
        with budget_of(file, watch) as budget:
            for item in read_within_budget(importer, file):
                events += not isinstance(item, ImportedRun)
                watch.check_stop()
    except RejectedEvent as error:
        raise file.refuse(error.detail, pointer=error.pointer) from error
    return events, budget.spent


def _end_without_runs(claimed: FileImport, state: ImportState, error: str, *, code: str = "") -> None:
    """End an import without storing runs, and delete the content of its file."""
    # The message may contain a value of the file, in which secrets are masked.
    text = truncate(clean(error), MAX_ERROR)
    with transaction.atomic():
        import_states.update(claimed, state=state, taken_until=None, finished_at=Now(), error=text, error_code=code)
        claimed.delete_content()
