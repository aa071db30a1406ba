"""The button that asks whether all that is stored is still true, and the page with the answer."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from agentops.admin_base.scope import scope_of
from agentops.http.methods import require_POST
from runs.upkeep import invariants

#: How long a page may look; the command looks for as long as it takes.
WITHIN_S = 10.0


@require_POST
def check(request: HttpRequest, site: AdminSite, opts: Any) -> HttpResponse:
    """Reads only, but everything of all projects: superusers alone may ask."""
    if not scope_of(request).sees_all:
        raise PermissionDenied
    report = invariants.check_within(within_s=WITHIN_S)
    statements = len(invariants.INVARIANTS)
    context = {
        **site.each_context(request),
        "title": "What is stored",
        "opts": opts,
        "violations": report.violations,
        "statements": statements,
        "asked": statements - len(report.unchecked),
        "unasked": report.unchecked,
        "within_s": WITHIN_S,
    }
    return TemplateResponse(request, "admin/runs/agentrun/checked.html", context)
