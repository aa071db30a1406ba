"""Template tags of the run page: its labels with the Export menu, and its notes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django import template
from django.urls import reverse

from agentops.accounts.access import Action
from agentops.accounts.requests import principal_of
from runs.actions.annotations import run_notes, share_links
from runs.actions.annotations.share_links import DEFAULT_DAYS
from runs.models import AgentRun
from timeline.display import clean

register = template.Library()


@register.inclusion_tag("runs/run/_run_labels.html", takes_context=True)
def labels_line(context: template.Context, run: AgentRun, actions: Collection[Action]) -> dict[str, Any]:
    """Render the labels of a run and its Export menu, with the share links for admins."""
    request = context.request  # type: ignore[attr-defined]
    links = share_links.links_of(run) if Action.MANAGE in actions else []
    return {
        "run": run,
        "labels": [clean(str(label)) for label in run.labels],
        "may_operate": Action.OPERATE in actions,
        "may_share": Action.MANAGE in actions,
        "default_days": DEFAULT_DAYS,
        "links": [(link, request.build_absolute_uri(_url(link))) for link in links],
        "csrf_token": context.get("csrf_token"),
    }


@register.inclusion_tag("runs/run/_run_notes.html", takes_context=True)
def notes_section(context: template.Context, run: AgentRun, actions: Collection[Action]) -> dict[str, Any]:
    """Render the notes on a run, and the forms to add and change them."""
    principal = principal_of(context.request)  # type: ignore[attr-defined]
    shown = [
        {
            "id": note.pk,
            "author": clean(note.author).removeprefix("user:"),
            "text": clean(note.text),
            "created_at": note.created_at,
            "edited_at": note.edited_at,
            "may_edit": note.holder == principal.holder and Action.OPERATE in actions,
            "may_delete": (note.holder == principal.holder and Action.OPERATE in actions) or Action.MANAGE in actions,
        }
        for note in run_notes.notes_of(run.pk)
    ]
    return {
        "run": run,
        "notes": shown,
        "may_operate": Action.OPERATE in actions,
        "max_note": run_notes.MAX_NOTE,
        "csrf_token": context.get("csrf_token"),
    }


def _url(link: Any) -> str:
    return reverse("runs:share-link", args=[share_links.token_of(link)])
