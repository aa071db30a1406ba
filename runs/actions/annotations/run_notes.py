"""Notes on runs. The caller checks the permission (Action.OPERATE)."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from agentops.accounts.access import Principal
from agentops.accounts.audit import record
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Forbidden, NotFound
from runs.actions.annotations.annotation_audit import AnnotationAuditAction
from runs.errors import InvalidAnnotation, RunNotFound
from runs.models import AgentRun, RunNote

#: Maximum characters of a note, and notes of a run.
MAX_NOTE, MAX_NOTES = 10_000, 500


def notes_of(run_id: UUID) -> list[RunNote]:
    """Return the notes of a run, oldest first."""
    return list(RunNote.objects.filter(run=run_id).order_by("pk"))


def add_note(run: AgentRun, text: str, *, by: Principal) -> RunNote:
    """Add a note to a run. Raises `InvalidAnnotation`, and `RunNotFound` if the run was removed."""
    with transaction.atomic():
        # Retention locks the same row before it hides the run and deletes its notes.
        if not AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=run.pk).exists():
            raise RunNotFound("no such run")
        if RunNote.objects.filter(run=run).count() >= MAX_NOTES:
            raise InvalidAnnotation(f"a run can have at most {MAX_NOTES} notes", pointer="/text")
        note = RunNote.objects.create(
            project=run.project, run=run, text=_checked(text), author=by.actor[:200], holder=by.holder,
            created_at=database_clock.now(),
        )  # fmt: skip
        record(by, AnnotationAuditAction.NOTE_ADDED, project=run.project, obj=run, after={"note": str(note.pk)})
    return note


def edit_note(run: AgentRun, note_id: UUID, text: str, *, by: Principal) -> RunNote:
    """Change the text of the user's note. Raises `note_not_found`, `not_your_note` and `InvalidAnnotation`."""
    with transaction.atomic():
        note = _locked(run, note_id)
        if note.holder != by.holder:
            raise Forbidden("only its author may edit a note", code="not_your_note")
        note.text, note.edited_at = _checked(text), database_clock.now()
        note.save(update_fields=["text", "edited_at"])
        record(by, AnnotationAuditAction.NOTE_EDITED, project=run.project, obj=run, after={"note": str(note.pk)})
    return note


def delete_note(run: AgentRun, note_id: UUID, *, by: Principal, manages: bool = False) -> None:
    """Delete the user's note; with `manages`, any note. Raises `note_not_found` and `not_your_note`."""
    with transaction.atomic():
        note = _locked(run, note_id)
        if note.holder != by.holder and not manages:
            raise Forbidden("only its author or an admin may delete a note", code="not_your_note")
        before = {"note": str(note.pk), "author": note.author}
        note.delete()
        record(by, AnnotationAuditAction.NOTE_DELETED, project=run.project, obj=run, before=before)


def _locked(run: AgentRun, note_id: UUID) -> RunNote:
    note = RunNote.objects.select_for_update().filter(run=run, pk=note_id).first()
    if note is None:
        raise NotFound("the run has no such note", code="note_not_found")
    return note


def _checked(text: str) -> str:
    """Return the text in stored form: redacted, without NUL and lone surrogates."""
    text = REDACTOR.clean_text(text.strip())[0]
    if not text:
        raise InvalidAnnotation("a note must have a text", pointer="/text")
    if len(text) > MAX_NOTE:
        raise InvalidAnnotation(f"a note can have at most {MAX_NOTE:,} characters, not {len(text):,}", pointer="/text")
    return text
