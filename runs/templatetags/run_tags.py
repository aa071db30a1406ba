"""Template tags: the bell of the top bar, the lengths of texts in forms, and the labels and notes of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django import template
from django.urls import reverse

from agentops.accounts.access import Action
from agentops.accounts.requests import principal_of
from runs.actions import run_annotations
from runs.actions.run_annotations import DEFAULT_DAYS
from runs.lifecycle import approval_decisions, inbox
from runs.models import AgentRun
from runs.queries.needs import count_of
from timeline.display import clean

register = template.Library()


@register.inclusion_tag("runs/approvals/_bell.html", takes_context=True)
def bell(context: template.Context, *, swap: bool = False) -> dict[str, Any]:
    """Render the link to the inbox with the number of its entries. One query.

    `swap`: htmx replaces the bell of an open page with this one.
    """
    counts = count_of(context["project"].pk)
    return {
        "project": context["project"],
        "count": counts.total,
        "label": counts.label,
        "swap": swap,
        "path": context["request"].path,
    }


@register.simple_tag
def max_message() -> int:
    """Return the maximum characters of a message to an agent, an answer, or the outcome of a call."""
    return inbox.MAX_MESSAGE


@register.simple_tag
def max_denial() -> int:
    """Return the maximum characters of the message of a denied call."""
    return approval_decisions.MAX_MESSAGE


@register.inclusion_tag("runs/run/_run_labels.html", takes_context=True)
def labels_line(context: template.Context, run: AgentRun, actions: Collection[Action]) -> dict[str, Any]:
    """Render the labels of a run and its Export menu, with the share links for admins."""
    request = context.request  # type: ignore[attr-defined]
    links = run_annotations.links_of(run) if Action.MANAGE in actions else []
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
    notes = [
        {
            "id": note.pk,
            "author": clean(note.author).removeprefix("user:"),
            "text": clean(note.text),
            "created_at": note.created_at,
            "edited_at": note.edited_at,
            "may_edit": note.holder == principal.holder and Action.OPERATE in actions,
            "may_delete": (note.holder == principal.holder and Action.OPERATE in actions) or Action.MANAGE in actions,
        }
        for note in run_annotations.notes_of(run.pk)
    ]
    return {
        "run": run,
        "notes": notes,
        "may_operate": Action.OPERATE in actions,
        "max_note": run_annotations.MAX_NOTE,
        "csrf_token": context.get("csrf_token"),
    }


def _url(link: Any) -> str:
    return reverse("runs:share-link", args=[run_annotations.token_of(link)])
