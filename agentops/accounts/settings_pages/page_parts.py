"""Shared parts of the settings pages: context, controls, form errors, redirects, and parsing of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django import forms
from django.http import HttpResponse
from django.shortcuts import resolve_url

from agentops.accounts.access import Action, EnteredProject
from agentops.base.refusals import InvalidQuery

#: Maximum entries of a menu.
MAX_CHOICES = 200
#: Attributes of controls: of a name or an expression, and of a value that unsent.js must not keep.
SHORT = {"spellcheck": "false", "autocapitalize": "none"}
SECRET = {"data-secret": True}


class HiddenText(forms.Textarea):
    """A text of several lines that is not sent back to the browser."""

    def format_value(self, value: Any) -> None:
        """Return no value."""


def settings_context(entry: EnteredProject) -> dict[str, Any]:
    """Return the context that all settings pages need."""
    return {
        "section": "settings",
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
    }


def add_refusal(form: forms.BaseForm, refusal: Exception, fields: Mapping[str, str]) -> None:
    """Add a refusal to the form field that it names: by its `field`, by its JSON pointer, or by its code.

    `fields` has the fields of the form whose names differ, and at "" the field for other refusals: none is the form.
    """
    pointer = str(getattr(refusal, "data", {}).get("pointer", "")).removeprefix("/agent/").removeprefix("/")
    name = getattr(refusal, "field", "") or pointer.partition("/")[0] or getattr(refusal, "code", "")
    name = fields.get(name, name)
    form.add_error(name if name in form.fields else fields.get(""), sentence(refusal))


def sentence(error: object) -> str:
    """Return the text of an error as a sentence."""
    text = str(error).rstrip(".")
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
