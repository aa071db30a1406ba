"""The forms of the settings pages, and functions that the pages share: context, form errors and redirects.

The forms do not check all values: the functions that change a project do.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from django import forms
from django.db.models import Model, QuerySet
from django.http import HttpResponse
from django.shortcuts import resolve_url

from agentops.accounts.access import Action, EnteredProject
from agentops.accounts.models import Role, Scope
from agentops.accounts.names import MAX_DESCRIPTION, MAX_NAME, MOST_RUNNING
from agentops.base import database_clock
from agentops.base.refusals import InvalidQuery

M = TypeVar("M", bound=Model)
#: Maximum entries of a menu.
MAX_CHOICES = 200
#: Attributes of a control for a name or an expression.
SHORT = {"spellcheck": "false", "autocapitalize": "none"}
#: Attributes of a control for a secret: unsent.js must not store its value.
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


def first_page(rows: QuerySet[M], size: int) -> tuple[list[M], M | None]:
    """Return the first `size` rows, and the last of them if there are further rows, otherwise None."""
    batch = list(rows[: size + 1])
    return batch[:size], batch[size - 1] if len(batch) > size else None


def add_refusal(form: forms.BaseForm, refusal: Exception, fields: Mapping[str, str]) -> None:
    """Add a refusal as an error of the form field that it names by its `field`, its JSON pointer or its code.

    `fields`: such a name → the name of the form field, if it differs. "" → the field for refusals that name none of the
    form; without it, they are errors of the whole form.
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
    """Return the ID in the parameter `name`; None if it is empty. Raises `InvalidQuery`."""
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InvalidQuery(f"{name} must be an ID, not {text[:64]!r}") from None


#: Code of a refusal → the form field that displays it.
PROJECT_FIELDS = {
    "slug_taken": "slug",
    "invalid_slug": "slug",
    "invalid_name": "name",
    "invalid_description": "description",
    "invalid_max_running": "max_running",
}
MEMBER_FIELDS = {
    "already_member": "who",
    "member_not_found": "who",
    "user_is_address": "who",
    "invalid_email": "who",
    "already_invited": "who",
    "invalid_role": "role",
}
KEY_FIELDS = {"invalid_name": "name", "invalid_scopes": "scopes", "invalid_expiry": "days"}
ROLE_TEXTS = {
    Role.VIEWER: "viewer: reads",
    Role.OPERATOR: "operator: also controls runs",
    Role.ADMIN: "admin: also manages",
}
SCOPE_TEXTS = {
    Scope.INGEST: "ingest: report events of runs",
    Scope.READ: "read: read runs and their events",
    Scope.WRITE: "write: also start and control runs",
    Scope.SECRETS: "secrets: view masked values",
    Scope.WORK: "work: execute runs of remote agents",
}
LIFETIMES = (("30", "30 days"), ("90", "90 days"), ("365", "1 year"), ("", "never"))
OVERLAPS = (("0", "at once"), ("1", "in 1 hour"), ("24", "in 1 day"), ("168", "in 7 days"))


class ProjectDetailsForm(forms.Form):
    """Name and description of a project."""

    name = forms.CharField(max_length=MAX_NAME)
    description = forms.CharField(
        max_length=MAX_DESCRIPTION,
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Shown on the list of projects.",
    )


class ProjectSettingsForm(ProjectDetailsForm):
    """The general settings of a project."""

    max_running = forms.IntegerField(
        min_value=1,
        max_value=MOST_RUNNING,
        required=False,
        label="Runs at the same time",
        widget=forms.TextInput(attrs={"inputmode": "numeric"}),
        help_text="Others wait in the queue until one ends or waits. Empty: no limit.",
    )


class NewProjectForm(ProjectDetailsForm):
    """A project to create."""

    slug = forms.CharField(
        max_length=63,
        widget=forms.TextInput(attrs=SHORT),
        help_text="For URLs and commands: lower-case letters, digits and dashes. It cannot be changed.",
    )
    field_order = ("name", "slug", "description")


class NewMemberForm(forms.Form):
    """A member to add."""

    who = forms.CharField(
        label="Username or e-mail address",
        max_length=254,
        widget=forms.TextInput(attrs={**SHORT, "autocomplete": "off"}),
    )
    role = forms.ChoiceField(
        choices=[(role.value, text) for role, text in ROLE_TEXTS.items()], initial=Role.OPERATOR.value
    )


class NewKeyForm(forms.Form):
    """An API key to create."""

    name = forms.CharField(max_length=MAX_NAME, help_text="What uses the key, such as ci or laptop.")
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, text) for scope, text in SCOPE_TEXTS.items()],
        widget=forms.CheckboxSelectMultiple,
        initial=[Scope.READ.value, Scope.WRITE.value],
        error_messages={"required": "Choose at least one scope."},
        help_text="Scopes are independent: write does not include ingest. No key can manage a project.",
    )
    days = forms.ChoiceField(label="Expires after", choices=LIFETIMES, required=False, initial="90")

    def expires_at(self) -> datetime | None:
        """Return the expiry of a valid form."""
        days: Any = self.cleaned_data["days"]
        return database_clock.now() + timedelta(days=int(days)) if days else None


class RotationForm(forms.Form):
    """The time until the old key expires."""

    hours = forms.ChoiceField(label="The old key expires", choices=OVERLAPS, initial="24")

    def overlap(self) -> timedelta:
        """Return the time for which both keys are valid."""
        return timedelta(hours=int(self.cleaned_data["hours"]))


def member_form(data: Any = None) -> NewMemberForm:
    """Return the form with unique element IDs, because pages have several forms."""
    return NewMemberForm(data, auto_id="member-%s")


def key_form(data: Any = None) -> NewKeyForm:
    """Return the form with unique element IDs, because pages have several forms."""
    return NewKeyForm(data, auto_id="key-%s")
