"""Annotations of runs by users: labels, notes, and share links. A share link shows a run's report without a login.

All changes are audited. The caller checks the permission: Action.OPERATE, and Action.MANAGE for share links.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from django.core import signing
from django.db import transaction
from django.db.models import F

from agentops.accounts.access import Principal
from agentops.accounts.audit import Actor, record
from agentops.accounts.names import one_line
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Forbidden, NotFound
from runs.errors import InvalidAnnotation, RunNotFound
from runs.lifecycle.title_limits import MAX_LABEL, MAX_LABELS
from runs.models import AgentRun, RunNote, ShareLink
from timeline.display import clean


class AnnotationAuditAction(enum.StrEnum):
    """The audited actions. Audit entries do not contain the texts of notes."""

    LABELS_CHANGED = "run.labels_changed"
    NOTE_ADDED = "run.note_added"
    NOTE_EDITED = "run.note_edited"
    NOTE_DELETED = "run.note_deleted"
    SHARED = "run.shared"
    SHARE_REVOKED = "run.share_revoked"
    VIEW_SAVED = "saved_view.saved"
    VIEW_DELETED = "saved_view.deleted"


def change_labels(
    run_id: UUID,
    *,
    by: Actor,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    replace: Iterable[str] | None = None,
) -> AgentRun:
    """Add and remove labels of a run, or replace all of them. Labels keep their order; new ones come last.

    Raises `InvalidAnnotation` for an invalid label or too many of them, and `RunNotFound`.
    """
    # Labels to remove are compared in masked form, as users see them: imported labels may contain secrets that an
    # earlier version did not recognise.
    added, removed = _checked_labels(add), {clean(label.strip()) for label in remove}
    with transaction.atomic():
        # Locked, because other requests may change the labels, and retention may hide the run.
        rows = AgentRun.objects.select_for_update(no_key=True, of=("self",)).select_related("project")
        run = rows.filter(pk=run_id).first()
        if run is None:
            raise RunNotFound("no such run")
        before = list(run.labels)
        kept = before if replace is None else _checked_labels(replace)
        labels = [label for label in dict.fromkeys([*kept, *added]) if clean(label) not in removed]
        if len(labels) > max(MAX_LABELS, len(before)):
            raise InvalidAnnotation(f"a run can have at most {MAX_LABELS} labels, not {len(labels)}", pointer="/labels")
        if labels != before:
            run.labels = labels
            run.save(update_fields=["labels"])
            was, now = {"labels": before}, {"labels": labels}
            record(by, AnnotationAuditAction.LABELS_CHANGED, project=run.project, obj=run, before=was, after=now)
    return run


def change_labels_of_many(run_ids: Iterable[UUID], *, by: Actor, add: Sequence[str], remove: Sequence[str]) -> int:
    """Add and remove labels of several runs. Returns the number of these runs, including unchanged ones.

    Changes nothing and raises the errors of `change_labels`, for example if a run would have too many labels.
    """
    # In a fixed order, so that two concurrent bulk changes do not deadlock.
    ordered = sorted(set(run_ids))
    with transaction.atomic():
        for run_id in ordered:
            change_labels(run_id, by=by, add=add, remove=remove)
    return len(ordered)


def _checked_labels(labels: Iterable[str]) -> list[str]:
    """Return the labels as stored, redacted and each once. Raises `InvalidAnnotation`."""
    checked = []
    for label in labels:
        text = one_line(label, MAX_LABEL + 1)
        if not 1 <= len(text) <= MAX_LABEL:
            raise InvalidAnnotation(
                f"a label must be one line of 1 to {MAX_LABEL} characters, not {label[:64]!r}", pointer="/labels"
            )
        checked.append(REDACTOR.clean_text(text)[0])
    return list(dict.fromkeys(checked))


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
            project=run.project,
            run=run,
            text=_checked_note(text),
            author=by.actor[:200],
            holder=by.holder,
            created_at=database_clock.now(),
        )
        record(by, AnnotationAuditAction.NOTE_ADDED, project=run.project, obj=run, after={"note": str(note.pk)})
    return note


def edit_note(run: AgentRun, note_id: UUID, text: str, *, by: Principal) -> RunNote:
    """Change the text of the user's own note.

    Raises `NotFound`, `Forbidden` with the code `not_your_note`, and `InvalidAnnotation`.
    """
    with transaction.atomic():
        note = _locked(run, note_id)
        if note.holder != by.holder:
            raise Forbidden("only its author may edit a note", code="not_your_note")
        note.text, note.edited_at = _checked_note(text), database_clock.now()
        note.save(update_fields=["text", "edited_at"])
        record(by, AnnotationAuditAction.NOTE_EDITED, project=run.project, obj=run, after={"note": str(note.pk)})
    return note


def delete_note(run: AgentRun, note_id: UUID, *, by: Principal, manages: bool = False) -> None:
    """Delete the user's own note; with `manages`, any note. Raises `NotFound`, and `Forbidden` (`not_your_note`)."""
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


def _checked_note(text: str) -> str:
    """Return the text as stored: redacted, without NUL and lone surrogates. Raises `InvalidAnnotation`."""
    text = REDACTOR.clean_text(text.strip())[0]
    if not text:
        raise InvalidAnnotation("a note must have a text", pointer="/text")
    if len(text) > MAX_NOTE:
        raise InvalidAnnotation(f"a note can have at most {MAX_NOTE:,} characters, not {len(text):,}", pointer="/text")
    return text


SALT = "runs.share_links"
#: The lifetime of a link in days.
MAX_DAYS, DEFAULT_DAYS = 90, 7
#: Maximum active links of a run.
MAX_LINKS = 20


def token_of(link: ShareLink) -> str:
    """Return the token for the URL of a link: the signed ID of the link."""
    return signing.Signer(salt=SALT).sign(link.pk.hex)


def link_of(token: str) -> ShareLink | None:
    """Return the active link of a token, with its run and project.

    None if the token is forged, the link has expired or was revoked, or the run no longer exists.
    """
    try:
        link_id = UUID(hex=signing.Signer(salt=SALT).unsign(token))
    except (signing.BadSignature, ValueError):
        return None
    rows = ShareLink.objects.select_related("run__project", "run__log", "project")
    link = rows.filter(pk=link_id, run__removed_at=None, project__removed_at=None).first()
    return link if link is not None and link.is_active(database_clock.now()) else None


def links_of(run: AgentRun) -> list[ShareLink]:
    """Return the active links of a run, newest first."""
    rows = ShareLink.objects.filter(run=run, revoked_at=None, expires_at__gt=database_clock.now())
    return list(rows.order_by("-pk")[:MAX_LINKS])


def share(run: AgentRun, days: int, *, by: Actor) -> ShareLink:
    """Create a link that expires after `days` days. Raises `InvalidAnnotation` and `RunNotFound`."""
    if not 1 <= days <= MAX_DAYS:
        raise InvalidAnnotation(f"days must be 1 to {MAX_DAYS}, not {days}", pointer="/days")
    with transaction.atomic():
        # Retention locks the same row before it hides the run and deletes its links.
        if not AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=run.pk).exists():
            raise RunNotFound("no such run")
        if len(links_of(run)) >= MAX_LINKS:
            raise InvalidAnnotation(f"a run can have at most {MAX_LINKS} links: revoke one", pointer="/days")
        now = database_clock.now()
        link = ShareLink.objects.create(
            project=run.project,
            run=run,
            created_by=(by if isinstance(by, str) else by.actor)[:200],
            created_at=now,
            expires_at=now + timedelta(days=days),
        )
        after = {"link": str(link.pk), "expires_at": link.expires_at}
        record(by, AnnotationAuditAction.SHARED, project=run.project, obj=run, after=after)
    return link


def revoke(run: AgentRun, link_id: UUID, *, by: Actor) -> ShareLink:
    """Revoke a link. Does nothing if it was revoked before. Raises `NotFound`."""
    with transaction.atomic():
        link = ShareLink.objects.select_for_update().filter(run=run, pk=link_id).first()
        if link is None:
            raise NotFound("the run has no such link", code="share_link_not_found")
        if link.revoked_at is None:
            link.revoked_at = database_clock.now()
            link.save(update_fields=["revoked_at"])
            record(by, AnnotationAuditAction.SHARE_REVOKED, project=run.project, obj=run, after={"link": str(link.pk)})
    return link


def count_view(link: ShareLink) -> None:
    """Count a request for the report of a link."""
    ShareLink.objects.filter(pk=link.pk).update(view_count=F("view_count") + 1, viewed_at=database_clock.now())
