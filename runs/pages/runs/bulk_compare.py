"""Compare two selected runs of the list."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from agentops.accounts.access import Action, project_for
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from runs.models import AgentRun
from runs.pages.runs.bulk_labels import list_of, selected_ids


@require_POST
def show(request: HttpRequest, project: str) -> HttpResponse:
    """Show the comparison of the two selected runs, the older one first; or return to the list with an error."""
    owner = project_for(principal_of(request), project, Action.READ)
    runs = AgentRun.objects.filter(project=owner, pk__in=selected_ids(request.POST))
    run_ids = list(runs.order_by("created_at", "pk").values_list("pk", flat=True))
    if len(run_ids) == 2:
        location = f"{reverse('runs:compare')}?{urlencode(dict(zip('ab', run_ids, strict=True)))}"
    else:
        messages.error(request, f"Not compared: select two runs, not {len(run_ids)}.")
        location = list_of(owner, request.POST)
    return HttpResponse(status=303, headers={"Location": location})
