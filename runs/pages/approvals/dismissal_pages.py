"""The views that dismiss failed runs and silent runners, so that they leave the inbox."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url

from agentops.accounts.access import Action, project_for
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from agentops.base.refusals import InvalidQuery
from runs.access import flow_run_for, run_for
from runs.actions import dismissals
from runs.models import AgentRun, FlowRun
from runs.pages.run.action_pages import redirect_to


@require_POST
def dismiss(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Dismiss a run, and redirect to the page of the form."""
    principal = principal_of(request)
    run = run_for(principal, run_id, Action.OPERATE)
    return _dismiss(request, run, "run", lambda: dismissals.dismiss(principal, run))


@require_POST
def dismiss_flow_run(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Dismiss a flow run, and redirect to the page of the form."""
    principal = principal_of(request)
    flow_run = flow_run_for(principal, flow_run_id, Action.OPERATE)
    return _dismiss(request, flow_run, "flow run", lambda: dismissals.dismiss_flow_run(principal, flow_run))


def _dismiss(request: HttpRequest, target: AgentRun | FlowRun, noun: str, action: Callable[[], bool]) -> HttpResponse:
    try:
        is_new = action()
    except dismissals.NotDismissable as refusal:
        messages.error(request, f"Not dismissed: {refusal}.")
    else:
        messages.success(request, f"Dismissed. The {noun} itself is unchanged." if is_new else "Already dismissed.")
    return redirect_to(request, target)


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
