"""Notes, saved views and share links. May import the product's models."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from runs.models import AgentRun, RunNote, SavedView, ShareLink
from tests.support.accounts import make_person


def annotate(run: AgentRun, text: str) -> tuple[RunNote, SavedView, ShareLink]:
    """Create a note, a shared view and a share link that belong to another user."""
    now, person = timezone.now(), make_person(run.project)
    note = RunNote.objects.create(
        project=run.project, run=run, text=text, author=text[:200], holder=f"user:{person.pk}", created_at=now
    )
    view = SavedView.objects.create(
        project=run.project, owner=person, name=text[:60], query="status=failed", is_shared=True
    )
    link = ShareLink.objects.create(
        project=run.project, run=run, created_by=text[:200], created_at=now, expires_at=now + timedelta(days=1)
    )
    return note, view, link


def annotation_ids(run: AgentRun) -> dict[str, object]:
    """Create annotations, and return their IDs by the name of the URL parameter."""
    note, view, link = annotate(run, "annotation")
    return {"uuid:note_id": note.pk, "uuid:view_id": view.pk, "uuid:link_id": link.pk}
