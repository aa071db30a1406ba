"""The API keys of a project: list, create, rotate, revoke. A key is displayed once, when it is created."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts import keys
from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.keys import NewKey
from agentops.accounts.models import ApiKey, KeyState, Scope
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import (
    KEY_FIELDS,
    NewKeyForm,
    RotationForm,
    add_refusal,
    first_page,
    id_of,
    key_form,
    see_other,
    settings_context,
)
from agentops.base import database_clock
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import Conflict, Invalid

PAGE_SIZE = 50
#: The events of a short run, for the example command of an ingest key.
_EVENTS = (
    '{"events":[{"runId":"hello","type":"run.started","event_id":"1"},'
    '{"runId":"hello","type":"run.completed","event_id":"2"}]}'
)
#: A claim that finds no run, for the example command of a key with the scope work.
_NO_WORK = '{"worker":"hello","agents":{"hello":[1]},"queues":["default"]}'
#: State of a key → the run status whose badge it uses.
BADGES = {KeyState.ACTIVE: "completed", KeyState.EXPIRED: "paused", KeyState.REVOKED: "stopped"}


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of keys, newest first."""
    return _page(request, enter(principal_of(request), project, Action.MANAGE))


@require_POST
def create(request: HttpRequest, project: str) -> HttpResponse:
    """Create a key and show it. If the form is invalid, show the list with the errors, with status 422."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    form = key_form(request.POST)
    if form.is_valid():
        values = {"name": form.cleaned_data["name"], "scopes": form.cleaned_data["scopes"]}
        try:
            new = keys.create_key(entry.project, **values, expires_at=form.expires_at(), actor=principal)
        except Invalid as refusal:
            add_refusal(form, refusal, KEY_FIELDS)
        else:
            return _new_key_page(request, entry, new)
    return _page(request, entry, form=form, status=422)


@require_safe
def detail(request: HttpRequest, project: str, key_id: UUID) -> HttpResponse:
    """Show a key, with the forms that rotate and revoke it."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    return _detail_page(request, entry, keys.key_of(entry.project, key_id), RotationForm())


@require_POST
def rotate(request: HttpRequest, project: str, key_id: UUID) -> HttpResponse:
    """Replace a key and show the new one. The form has the time until the old one expires."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    key, form = keys.key_of(entry.project, key_id), RotationForm(request.POST)
    if not form.is_valid():
        return _detail_page(request, entry, key, form, status=422)
    try:
        new = keys.rotate(key, actor=principal, overlap=form.overlap())
    except Conflict as refusal:
        messages.error(request, f"Not rotated: {refusal}.")
        return see_other("api-key", entry.project.slug, key.pk)
    key.refresh_from_db()
    return _new_key_page(request, entry, new, old=key)


@require_POST
def revoke(request: HttpRequest, project: str, key_id: UUID) -> HttpResponse:
    """Revoke a key."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    key = keys.revoke(keys.key_of(entry.project, key_id), actor=principal)
    messages.success(request, f"{key.name} revoked. Requests with it are refused from now on.")
    return see_other("api-keys", entry.project.slug)


def _row(key: ApiKey) -> dict[str, Any]:
    state = key.state(database_clock.now())
    return {"key": key, "state": state.value, "badge": BADGES[state], "is_active": state is KeyState.ACTIVE}


def _detail_page(
    request: HttpRequest, entry: EnteredProject, key: ApiKey, form: RotationForm, *, status: int = 200
) -> HttpResponse:
    context = {"row": _row(key), "form": form, "command": f"agentops key rotate {key.prefix}"}
    return render(request, "accounts/api_key.html", {**settings_context(entry), **context}, status=status)


def _page(
    request: HttpRequest, entry: EnteredProject, *, form: NewKeyForm | None = None, status: int = 200
) -> HttpResponse:
    before = id_of(request.GET.get("before", ""), "before")
    rows = ApiKey.objects.filter(project=entry.project).defer("sha256").order_by("-pk")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    page, last = first_page(rows, PAGE_SIZE)
    context: dict[str, Any] = {
        **settings_context(entry),
        "form": form or key_form(),
        "rows": [_row(key) for key in page],
        "is_first_page": before is None,
        "older": last and last.pk,
        "command": f"agentops key create --project {entry.project.slug} --name NAME --scopes read,write --expires 90d",
    }
    return render(request, "accounts/api_keys.html", context, status=status)


def _new_key_page(
    request: HttpRequest, entry: EnteredProject, new: NewKey, *, old: ApiKey | None = None
) -> HttpResponse:
    """Show a new key with a command that uses it; `old`: the key that it replaces. Browsers must not cache the page."""
    context = {
        **settings_context(entry),
        "key": new.key,
        "plain": new.plain,
        "old": old,
        "command": _example(request, new),
    }
    response = render(request, "accounts/new_api_key.html", context)
    response["Cache-Control"] = "no-store"
    return response


def _example(request: HttpRequest, new: NewKey) -> str:
    """Return a command by which the user can see that the key works."""
    site = settings.AGENTOPS_BASE_URL or f"{request.scheme}://{request.get_host()}"
    header = f'curl -H "Authorization: Bearer {new.plain}"'
    if not {Scope.READ, Scope.WRITE}.isdisjoint(new.key.scopes):
        return f'{header} "{site}{reverse("api:runs", args=[new.key.project.slug])}?limit=1"'
    if Scope.INGEST in new.key.scopes:
        return f"{header} -H 'Content-Type: application/json' -d '{_EVENTS}' {site}{reverse('api:agent-events')}"
    if Scope.WORK in new.key.scopes:
        # Answered with 204, because no agent is named like this.
        return f"{header} -i -H 'Content-Type: application/json' -d '{_NO_WORK}' {site}{reverse('api:work-claim')}"
    return f"{header} {site}{reverse('api:projects')}"
