"""The notifications page of a project. Each member has their own read status."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url

from agentops.accounts import mailing, notifications
from agentops.accounts.access import Action, enter, project_for
from agentops.accounts.login.addresses import is_verified
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import InvalidQuery

PAGE_SIZE = 30
#: Maximum entries of a menu.
MAX_CHOICES = 200


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of notifications, newest first."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.READ)
    owner = entry.project
    before = _id(request.GET.get("before", ""), "before")
    rows = notifications.inbox(owner.pk, principal.user_id)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    # One more than a page, to know whether there are older ones.
    batch = list(rows[: PAGE_SIZE + 1])
    page = batch[:PAGE_SIZE]
    context = {
        "project": owner,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "notifications": page,
        "any_unread": any(not each.is_read for each in page),
        "is_first_page": before is None,
        "before": before,
        "older": page[-1].pk if len(batch) > PAGE_SIZE else None,
        "has_email": settings.AGENTOPS_EMAIL,
        "is_verified": is_verified(request.user),
        "gets_mail": Action.OPERATE in entry.actions and mailing.gets_mail(owner, principal.user_id),
    }
    return render(request, "accounts/notifications.html", context)


@require_POST
def read(request: HttpRequest, project: str) -> HttpResponse:
    """Mark as read the notification `id`, or all up to the notification `up_to`."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.READ)
    one, up_to = _id(request.POST.get("id", ""), "id"), _id(request.POST.get("up_to", ""), "up_to")
    if (one is None) == (up_to is None) or principal.user_id is None:
        raise InvalidQuery("send either id or up_to")
    if one is not None:
        notifications.mark_read(owner.pk, principal.user_id, [one])
    elif up_to is not None:
        count = notifications.mark_all_read(owner.pk, principal.user_id, up_to=up_to)
        messages.success(request, f"Marked {count} as read." if count else "All notifications were already read.")
    before = _id(request.POST.get("before", ""), "before")
    query = f"?before={before}" if before is not None else ""
    return HttpResponse(status=303, headers={"Location": resolve_url("notifications", owner.slug) + query})


def _id(text: str, name: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InvalidQuery(f"{name} must be a notification ID, not {text[:64]!r}") from None
