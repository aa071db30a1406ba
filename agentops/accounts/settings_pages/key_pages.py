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
from agentops.accounts.settings_pages.page_parts import add_refusal, id_of, see_other, settings_context
from agentops.accounts.settings_pages.settings_forms import KEY_FIELDS, NewKeyForm, RotationForm, key_form
from agentops.base import database_clock
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import Conflict, Invalid

PAGE_SIZE = 50
#: Events of a short run, as a runner sends them.
_EVENTS = (
    '{"events":[{"runId":"hello","type":"run.started","event_id":"1"},'
    '{"runId":"hello","type":"run.completed","event_id":"2"}]}'
)
#: State of a key → the run status whose badge it uses.
BADGES = {KeyState.ACTIVE: "completed", KeyState.EXPIRED: "paused", KeyState.REVOKED: "stopped"}


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of keys, newest first."""
    return _page(request, enter(principal_of(request), project, Action.MANAGE))


@require_POST
def create(request: HttpRequest, project: str) -> HttpResponse:
    """Create the key of the form and show it, or show the list again with errors and status 422."""
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
            return _show(request, entry, new)
    return _page(request, entry, form=form, status=422)


@require_safe
def detail(request: HttpRequest, project: str, key_id: UUID) -> HttpResponse:
    """Show a key, with the forms that rotate and revoke it."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    key = keys.key_of(entry.project, key_id)
    command = f"agentops key rotate {key.prefix}"
    context = {"row": _row(key), "form": RotationForm(), "command": command}
    return render(request, "accounts/api_key.html", {**settings_context(entry), **context})


@require_POST
def rotate(request: HttpRequest, project: str, key_id: UUID) -> HttpResponse:
    """Replace a key and show the new one. The old one expires as the form says."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    key, form = keys.key_of(entry.project, key_id), RotationForm(request.POST)
    if not form.is_valid():
        context = {"row": _row(key), "form": form, "command": f"agentops key rotate {key.prefix}"}
        return render(request, "accounts/api_key.html", {**settings_context(entry), **context}, status=422)
    try:
        new = keys.rotate(key, actor=principal, overlap=form.overlap())
    except Conflict as refusal:
        messages.error(request, f"Not rotated: {refusal}.")
        return see_other("api-key", entry.project.slug, key.pk)
    key.refresh_from_db()
    return _show(request, entry, new, old=key)


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
    return {
        "key": key,
        "state": state.value,
        "badge": BADGES[state],
        "is_active": state is KeyState.ACTIVE,
    }


def _page(
    request: HttpRequest, entry: EnteredProject, *, form: NewKeyForm | None = None, status: int = 200
) -> HttpResponse:
    before = id_of(request.GET.get("before", ""), "before")
    rows = ApiKey.objects.filter(project=entry.project).defer("sha256").order_by("-pk")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    # One more than a page, to know whether there are more.
    batch = list(rows[: PAGE_SIZE + 1])
    page = batch[:PAGE_SIZE]
    context: dict[str, Any] = {
        **settings_context(entry),
        "form": form or key_form(),
        "rows": [_row(key) for key in page],
        "is_first_page": before is None,
        "older": page[-1].pk if len(batch) > PAGE_SIZE else None,
        "command": f"agentops key create --project {entry.project.slug} --name NAME --scopes read,write --expires 90d",
    }
    return render(request, "accounts/api_keys.html", context, status=status)


def _show(request: HttpRequest, entry: EnteredProject, new: NewKey, *, old: ApiKey | None = None) -> HttpResponse:
    """Show a new key with a command that uses it. The page must not be cached."""
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
    """Return a command that shows that the key works."""
    site = settings.AGENTOPS_BASE_URL or f"{request.scheme}://{request.get_host()}"
    header = f'curl -H "Authorization: Bearer {new.plain}"'
    if not {Scope.READ, Scope.WRITE}.isdisjoint(new.key.scopes):
        return f'{header} "{site}{reverse("api:runs", args=[new.key.project.slug])}?limit=1"'
    if Scope.INGEST in new.key.scopes:
        return f"{header} -H 'Content-Type: application/json' -d '{_EVENTS}' {site}{reverse('api:agent-events')}"
    return f"{header} {site}{reverse('api:projects')}"
