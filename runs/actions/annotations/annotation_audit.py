"""The audited actions of labels, notes, saved views and share links."""

from __future__ import annotations

import enum


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
