"""Switches the telemetry of a project on and off."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url

from agentops.accounts.access import Action, enter
from agentops.accounts.memberships import change_project
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from agentops.base.refusals import InvalidQuery

ON, OFF = "on", "off"
_DONE = {
    ON: "Telemetry of this project is on. Its sinks go on where they were.",
    OFF: "Telemetry of this project is off. Its sinks pause, and those of the site leave it out.",
}


@require_POST
def switch(request: HttpRequest, project: str) -> HttpResponse:
    """Enable or disable export of the project's events: `telemetry` is "on" or "off"."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    choice = request.POST.get("telemetry", "")
    if choice not in _DONE:
        raise InvalidQuery("telemetry must be on or off")
    change_project(entry.project, exports_telemetry=choice == ON, actor=principal)
    messages.success(request, _DONE[choice])
    return HttpResponse(status=303, headers={"Location": resolve_url("runs:sinks", entry.project.slug)})
