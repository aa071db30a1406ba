"""The actions on a schedule: enable and disable it, start a run now, remove it."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url

from agentops.http.methods import require_POST
from agentops.projects.access import Action, enter
from agentops.projects.errors import AccessError, InvalidQuery
from agentops.projects.requests import principal_of
from runs.actions.schedules.schedule_changes import change_schedule, remove_schedule, run_now, schedule_of
from runs.errors import RunRefusal
from runs.pages.forms.single_use import create_once
from timeline.display import clean


@require_POST
def switch(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Enable or disable a schedule: `enabled` is "yes" or "no"."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    choice = request.POST.get("enabled", "")
    if choice not in ("yes", "no"):
        raise InvalidQuery("enabled must be yes or no")
    change_schedule(entry.project, schedule_id, {"is_enabled": choice == "yes"}, by=principal)
    messages.success(request, "Schedule resumed." if choice == "yes" else "Schedule paused. It starts no runs.")
    return _see_other("runs:schedule", entry.project.slug, schedule_id)


@require_POST
def run(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Start a run now. The same form again leads to the run that it started."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    schedule = schedule_of(entry.project, schedule_id)
    try:
        token = UUID(request.POST.get("token", ""))
    except ValueError:
        raise InvalidQuery("token must be that of the form: reload the page") from None
    try:
        run_id = create_once(request, token, lambda: run_now(entry.project, schedule.pk, by=principal))
    except (RunRefusal, AccessError) as refusal:
        messages.error(request, f"No run was started: {clean(str(refusal))}.")
        return _see_other("runs:schedule", entry.project.slug, schedule_id)
    return _see_other("runs:detail" if schedule.agent else "runs:flow-run", run_id)


@require_POST
def remove(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Remove a schedule with the list of its starts."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    remove_schedule(entry.project, schedule_id, by=principal)
    messages.success(request, "Schedule removed. Its runs stay.")
    return _see_other("runs:schedules", entry.project.slug)


def _see_other(name: str, *args: object) -> HttpResponse:
    return HttpResponse(status=303, headers={"Location": resolve_url(name, *args)})
