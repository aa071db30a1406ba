"""The notifications page of a project. Each user has their own read status."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url

from agentops.accounts import mailing, notifications
from agentops.accounts.access import Action, enter, project_for
from agentops.accounts.login.addresses import is_verified
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import MAX_CHOICES, first_page, id_of
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import InvalidQuery

PAGE_SIZE = 30


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of notifications, newest first."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.READ)
    before = id_of(request.GET.get("before", ""), "before")
    rows = notifications.inbox(entry.project.pk, principal.user_id)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    page, last = first_page(rows, PAGE_SIZE)
    context = {
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "notifications": page,
        "any_unread": any(not each.is_read for each in page),
        "is_first_page": before is None,
        "before": before,
        "older": last and last.pk,
        "has_email": settings.AGENTOPS_EMAIL,
        "is_verified": is_verified(request.user),
        "gets_mail": Action.OPERATE in entry.actions and mailing.gets_mail(entry.project, principal.user_id),
    }
    return render(request, "accounts/notifications.html", context)


@require_POST
def read(request: HttpRequest, project: str) -> HttpResponse:
    """Mark as read the notification `id`, or all up to the notification `up_to`."""
    principal = principal_of(request)
    project_row = project_for(principal, project, Action.READ)
    single_id, up_to = id_of(request.POST.get("id", ""), "id"), id_of(request.POST.get("up_to", ""), "up_to")
    if (single_id is None) == (up_to is None) or principal.user_id is None:
        raise InvalidQuery("send either id or up_to")
    if single_id is not None:
        notifications.mark_read(project_row.pk, principal.user_id, [single_id])
    elif up_to is not None:
        count = notifications.mark_all_read(project_row.pk, principal.user_id, up_to=up_to)
        messages.success(request, f"Marked {count} as read." if count else "All notifications were already read.")
    before = id_of(request.POST.get("before", ""), "before")
    query = f"?before={before}" if before is not None else ""
    return HttpResponse(status=303, headers={"Location": resolve_url("notifications", project_row.slug) + query})
