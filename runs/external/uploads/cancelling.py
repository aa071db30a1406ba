"""Cancels imports before or while a worker processes them. Nothing of a cancelled import is stored."""

from __future__ import annotations

from django.db import transaction

from agentops.accounts.audit import Actor, record
from agentops.base.database_clock import Now
from agentops.base.refusals import NotFound
from runs.errors import ImportFinished
from runs.external.uploads.intake import ImportAuditAction
from runs.models import FileImport, ImportState


def cancel(actor: Actor, file_import: FileImport) -> FileImport:
    """Cancel an import and return it. Cancelling it again changes nothing.

    The caller has checked the permission. The worker of the import loses its claim: it detects this after the next part
    of its work, and then rolls back. Raises `ImportFinished` if the import was done or refused, or has failed, and
    `import_not_found` if it was deleted.
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
