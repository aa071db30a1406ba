"""The admin page that checks the invariants of all stored data."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from agentops.admin_base.scope import scope_of
from agentops.http.methods import require_POST
from runs.upkeep import invariants

#: Time limit of the page in seconds; the command has none.
WITHIN_S = 10.0


@require_POST
def check(request: HttpRequest, site: AdminSite, opts: Any) -> HttpResponse:
    """Check the invariants of all projects. Read-only. Raise PermissionDenied unless superuser."""
    if not scope_of(request).sees_all:
        raise PermissionDenied
    report = invariants.check_within(within_s=WITHIN_S)
    statements = len(invariants.INVARIANTS)
    context = {
        **site.each_context(request),
        "title": "Invariant check",
        "opts": opts,
        "violations": report.violations,
        "statements": statements,
        "checked": statements - len(report.unchecked),
        "unchecked": report.unchecked,
        "within_s": WITHIN_S,
    }
    return TemplateResponse(request, "admin/runs/agentrun/checked.html", context)
