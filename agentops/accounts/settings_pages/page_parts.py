"""Shared parts of the settings pages: context, form errors, redirects, and parsing of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django import forms
from django.http import HttpResponse
from django.shortcuts import resolve_url

from agentops.accounts.access import Action, EnteredProject
from agentops.base.refusals import InvalidQuery, Refusal

#: Maximum entries of a menu.
MAX_CHOICES = 200


def settings_context(entry: EnteredProject) -> dict[str, Any]:
    """Return the context that all settings pages need."""
    return {
        "section": "settings",
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
    }


def add_refusal(form: forms.Form, refusal: Refusal, fields: Mapping[str, str]) -> None:
    """Add a refusal to the form field that `fields` has for its code, otherwise to the form."""
    form.add_error(fields.get(refusal.code), sentence(refusal))


def sentence(refusal: Refusal) -> str:
    """Return the text of a refusal as a sentence."""
    text = str(refusal)
    return f"{text[:1].upper()}{text[1:]}."


def see_other(view_name: str, *arguments: Any) -> HttpResponse:
    """Redirect to a page after a POST."""
    return HttpResponse(status=303, headers={"Location": resolve_url(view_name, *arguments)})


def id_of(text: str, name: str) -> UUID | None:
    """Return the ID in a parameter; None if it is empty. Raise InvalidQuery."""
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InvalidQuery(f"{name} must be an ID, not {text[:64]!r}") from None
