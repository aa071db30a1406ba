"""Stores uploaded files for import by a worker, and cancels imports.

An import can be cancelled before and while a worker processes it. Nothing of a cancelled import is stored.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Sum

from agentops.accounts.access import Principal
from agentops.accounts.audit import Actor, record
from agentops.accounts.models import Project
from agentops.accounts.names import truncate
from agentops.base.database_clock import Now
from agentops.base.refusals import Invalid, NotFound, Refusal
from runs.errors import ImportFinished
from runs.external.importers import formats
from runs.lifecycle import wake
from runs.models import FileImport, FileImportPiece, ImportState
from timeline.display import clean

MIB = 1024 * 1024
#: Maximum bytes of one row of a file's content.
PIECE_BYTES = MIB
#: Maximum characters of a file's name.
MAX_NAME = 255
#: Maximum files of one request.
MAX_FILES = 100
#: Maximum files, and their bytes, that wait in a project for their import.
MAX_UNFINISHED, MAX_UNFINISHED_BYTES = 500, 512 * MIB
#: Seconds after which a refused client may try again.
RETRY_AFTER_S = 60


class UploadInvalid(Invalid):
    """The upload has no file, an empty file, too many files, or an unknown format."""

    code = "invalid_upload"


class UploadTooLarge(Refusal):
    """The total size of the files exceeds AGENTOPS_UPLOAD_MIB."""

    code = "body_too_large"
    status = 413


class TooManyImports(Refusal):
    """The project has too many files waiting for import."""

    code = "too_many_imports"
    status = 429
    headers = {"Retry-After": str(RETRY_AFTER_S)}


class ImportAuditAction(enum.StrEnum):
    """The audited actions of uploads."""

    FILE_UPLOADED = "import.uploaded"
    FILE_CANCELLED = "import.cancelled"


@dataclass(frozen=True)
class Upload:
    """An uploaded file. `content` is at its beginning and can be read twice."""

    name: str
    content: IO[bytes]
    size: int


def store(
    principal: Principal,
    project: Project,
    files: Sequence[Upload],
    format_name: str = "",
    *,
    is_strict: bool = False,
) -> list[FileImport]:
    """Store files for import, all or none, and return their imports in the same order. Wakes a worker.

    `is_strict`: refuse files with a damaged line. The caller has checked the permission. Raises `UploadInvalid`,
    `UploadTooLarge` or `TooManyImports`.
    """
    _check(files, format_name)
    with transaction.atomic():
        imports = [
            FileImport(
                project=project,
                file_name=file_name(file.name),
                size=file.size,
                sha256=_digest(file.content),
                format=format_name,
                is_strict=is_strict,
                created_by=principal.actor[:200],
            )
            for file in files
        ]
        _check_queue(project, imports)
        for file_import, file in zip(FileImport.objects.bulk_create(imports), files, strict=True):
            for number, content in enumerate(_pieces(file.content)):
                FileImportPiece.objects.create(file_import=file_import, number=number, content=content)
            after = {"file": file_import.file_name, "size": file.size, "sha256": file_import.sha256.hex()}
            record(principal, ImportAuditAction.FILE_UPLOADED, project=project, obj=file_import, after=after)
        wake.wake_importer()
    return imports


def file_name(name: str) -> str:
    """Return the last part of a file's name, without secrets and control characters."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return truncate(clean(last).replace("\n", " ").strip(), MAX_NAME) or "unnamed"


def _check(files: Sequence[Upload], format_name: str) -> None:
    names = [importer.name for importer in formats.importers()]
    if format_name and format_name not in names:
        text = f"{clean(format_name[:64])!r} is not a known format: choose from {', '.join(names)}"
        raise UploadInvalid(text, pointer="/format")
    if not files:
        raise UploadInvalid("the upload contains no file", pointer="/file")
    if len(files) > MAX_FILES:
        raise UploadInvalid(f"{len(files)} files: upload at most {MAX_FILES} at a time", pointer="/file")
    for file in files:
        if not file.size:
            raise UploadInvalid(f"{file_name(file.name)!r} is empty", pointer="/file")
    if sum(file.size for file in files) > settings.AGENTOPS_UPLOAD_MIB * MIB:
        raise UploadTooLarge(f"the files have more than {settings.AGENTOPS_UPLOAD_MIB} MiB together")


def _check_queue(project: Project, imports: Sequence[FileImport]) -> None:
    """Raise `TooManyImports` if the upload exceeds the limits of waiting files.

    The project is not locked, so concurrent requests may exceed the limits.
    """
    waiting = FileImport.objects.unfinished().filter(project=project).aggregate(files=Count("pk"), size=Sum("size"))
    size = (waiting["size"] or 0) + sum(one.size for one in imports)
    if waiting["files"] + len(imports) > MAX_UNFINISHED or size > MAX_UNFINISHED_BYTES:
        text = f"{waiting['files']} files of the project are waiting for their import: try again later"
        raise TooManyImports(text)


def _digest(content: IO[bytes]) -> bytes:
    digest = hashlib.sha256()
    for piece in _pieces(content):
        digest.update(piece)
    return digest.digest()


def _pieces(content: IO[bytes]) -> Iterator[bytes]:
    content.seek(0)
    while piece := content.read(PIECE_BYTES):
        yield piece


def cancel(actor: Actor, file_import: FileImport) -> FileImport:
    """Cancel an import and return it. Cancelling it again changes nothing.

    The caller has checked the permission. A worker that processes the import loses its claim, which it detects after
    the next part of its work. Raises `ImportFinished` if the import is done or refused, or has failed; `NotFound` with
    the code `import_not_found` if it was deleted.
    """
    with transaction.atomic():
        # A worker that stores the result locks this row until its commit.
        row = FileImport.objects.select_for_update(no_key=True, of=("self",)).filter(pk=file_import.pk).first()
        if row is None:
            raise NotFound("no such import", code="import_not_found")
        if row.state == ImportState.CANCELLED:
            return row
        if row.is_finished:
            raise ImportFinished(f"the import is {row.state}: only waiting and running imports can be cancelled")
        before = {"state": row.state}
        cancelled = {"state": ImportState.CANCELLED, "taken_until": None, "finished_at": Now()}
        FileImport.objects.filter(pk=row.pk).update(**cancelled)
        row.delete_content()
        row.refresh_from_db()
        after = {"state": row.state, "file": row.file_name}
        record(actor, ImportAuditAction.FILE_CANCELLED, project=row.project, obj=row, before=before, after=after)
    return row
