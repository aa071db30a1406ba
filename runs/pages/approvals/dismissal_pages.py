"""The views that dismiss failed runs and silent runners, so that they leave the inbox."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url

from agentops.accounts.access import Action, project_for
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from agentops.base.refusals import InvalidQuery
from runs.actions import dismissals
from runs.models import FlowRun
from runs.pages.run.action_pages import redirect_to
from runs.pages.run.any_run import run_of


@require_POST
def dismiss(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Dismiss a run or flow run, and redirect to the page of the form."""
    principal = principal_of(request)
    run = run_of(principal, url, Action.OPERATE)
    noun = "flow run" if isinstance(run, FlowRun) else "run"
    try:
        if isinstance(run, FlowRun):
            is_new = dismissals.dismiss_flow_run(principal, run)
        else:
            is_new = dismissals.dismiss(principal, run)
    except dismissals.NotDismissable as refusal:
        messages.error(request, f"Not dismissed: {refusal}.")
    else:
        messages.success(request, f"Dismissed. The {noun} itself is unchanged." if is_new else "Already dismissed.")
    return redirect_to(request, run)


@require_POST
def dismiss_failed(request: HttpRequest, project: str) -> HttpResponse:
    """Dismiss the runs of a project that had failed by the time `upto`, when the page was rendered."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.OPERATE)
    try:
        upto = datetime.fromisoformat(request.POST.get("upto", ""))
        if upto.tzinfo is None:
            raise ValueError
        upto = upto.astimezone(UTC)
    except (ValueError, OverflowError):  # the time zone may move it out of the calendar
        raise InvalidQuery("upto must be a time in ISO 8601 with a zone") from None
    count = dismissals.dismiss_failed(principal, owner, upto)
    messages.success(request, f"Dismissed {count} failed run{'' if count == 1 else 's'}.")
    return HttpResponse(status=303, headers={"Location": resolve_url("runs:approvals", owner.slug)})
