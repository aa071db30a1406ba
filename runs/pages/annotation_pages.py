"""The views behind the labels, notes and share links of a run page."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url

from agentops.accounts.access import Action, Principal, may
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from agentops.base.refusals import Conflict, Forbidden, Invalid
from runs.access import run_for
from runs.actions.annotations import labels as label_changes
from runs.actions.annotations import run_notes, share_links
from runs.models import AgentRun
from runs.pages.forms import fields

Change = Callable[..., str]


def _change(action: Action, failure: str, anchor: str = "") -> Callable[[Change], Callable[..., HttpResponse]]:
    """Make a POST view of a change that returns the message for the user. An error also becomes a message."""

    def decorate(change: Change) -> Callable[..., HttpResponse]:
        @require_POST
        @wraps(change)
        def view(request: HttpRequest, run_id: UUID, **url_args: UUID) -> HttpResponse:
            principal = principal_of(request)
            run = run_for(principal, run_id, action)
            try:
                messages.success(request, change(request, principal, run, **url_args))
            except (Forbidden, Conflict, Invalid) as refusal:
                messages.error(request, f"{failure}: {refusal}.")
            return HttpResponse(status=303, headers={"Location": resolve_url("runs:detail", run.pk) + anchor})

        return view

    return decorate


@_change(Action.OPERATE, "Labels not changed")
def labels(request: HttpRequest, principal: Principal, run: AgentRun) -> str:
    """Add the label `add`, or remove the label `remove`."""
    added, removed = fields.line(request.POST.get("add", "")), request.POST.get("remove", "")
    if not added and not removed:
        raise Invalid("enter a label", pointer="/add")
    label_changes.change_labels(run.pk, by=principal, add=[added] if added else [], remove=[removed] if removed else [])
    return f"Label “{added}” added." if added else "Label removed."


@_change(Action.OPERATE, "Note not added", "#notes")
def add_note(request: HttpRequest, principal: Principal, run: AgentRun) -> str:
    """Add a note."""
    run_notes.add_note(run, fields.text(request.POST.get("text", "")), by=principal)
    return "Note added."


@_change(Action.OPERATE, "Note not changed", "#notes")
def change_note(request: HttpRequest, principal: Principal, run: AgentRun, note_id: UUID) -> str:
    """Change the text of a note; with `do=delete`, delete it."""
    if request.POST.get("do") == "delete":
        manages = may(principal, Action.MANAGE, run.project_id)
        run_notes.delete_note(run, note_id, by=principal, manages=manages)
        return "Note deleted."
    run_notes.edit_note(run, note_id, fields.text(request.POST.get("text", "")), by=principal)
    return "Note changed."


@_change(Action.MANAGE, "Run not shared")
def share(request: HttpRequest, principal: Principal, run: AgentRun) -> str:
    """Create a share link."""
    try:
        days = fields.integer(request.POST.get("days", "")) or share_links.DEFAULT_DAYS
    except ValueError as error:
        raise Invalid(f"days: {error}", pointer="/days") from None
    share_links.share(run, days, by=principal)
    return f"Link created. It expires in {days} day{'' if days == 1 else 's'}: copy it under Export."


@_change(Action.MANAGE, "Link not revoked")
def revoke(request: HttpRequest, principal: Principal, run: AgentRun, link_id: UUID) -> str:
    """Revoke a share link."""
    share_links.revoke(run, link_id, by=principal)
    return "Link revoked."
