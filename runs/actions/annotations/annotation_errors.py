"""The audited actions and the errors of labels, notes, saved views and share links."""

from __future__ import annotations

import enum

from runs.errors import InvalidInput, RunRefusal


class AnnotationAuditAction(enum.StrEnum):
    """The audited actions. Entries do not contain the texts of notes."""

    LABELS_CHANGED = "run.labels_changed"
    NOTE_ADDED = "run.note_added"
    NOTE_EDITED = "run.note_edited"
    NOTE_DELETED = "run.note_deleted"
    SHARED = "run.shared"
    SHARE_REVOKED = "run.share_revoked"
    VIEW_SAVED = "saved_view.saved"
    VIEW_DELETED = "saved_view.deleted"


class InvalidAnnotation(InvalidInput):
    """A label, note, view or link is invalid."""

    code = "invalid_annotation"


class NoteNotFound(RunRefusal):
    """The run has no such note."""

    code = "note_not_found"
    status = 404


class NotYourNote(RunRefusal):
    """Only the author may edit a note."""

    code = "not_your_note"
    status = 403


class SavedViewNotFound(RunRefusal):
    """The project has no such view, or it belongs to another user."""

    code = "saved_view_not_found"
    status = 404


class SavedViewTaken(RunRefusal):
    """The user already has a view of this name."""

    code = "saved_view_taken"


class ShareLinkNotFound(RunRefusal):
    """The run has no such link."""

    code = "share_link_not_found"
    status = 404
