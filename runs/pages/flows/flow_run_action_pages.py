"""The views behind the buttons of a flow run's page: resume, pause, stop, send. Each calls one action."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from agentops.accounts.access import Action, Principal
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from agentops.base.refusals import Conflict, Invalid
from runs.access import flow_run_for
from runs.actions import flow_commands, flow_run_actions
from runs.models import FlowRun
from runs.pages.forms import fields

#: Performs an action and returns the message that the page shows.
Act = Callable[[HttpRequest, Principal, FlowRun], str]


def _action(failure: str) -> Callable[[Act], Callable[..., HttpResponse]]:
    """Make a POST view of an action: check the permission, and show refusals in a banner that begins with `failure`."""

    def decorate(act: Act) -> Callable[..., HttpResponse]:
        @require_POST
        @wraps(act)
        def view(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
            principal = principal_of(request)
            flow_run = flow_run_for(principal, flow_run_id, Action.OPERATE)
            try:
                messages.success(request, act(request, principal, flow_run))
            except (Conflict, Invalid) as refusal:
                messages.error(request, f"{failure}: {refusal}.")
            return _redirect(request, flow_run)

        return view

    return decorate


@_action("Not resumed")
def resume(request: HttpRequest, principal: Principal, flow_run: FlowRun) -> str:
    """Resume a paused flow run, with a message or without one."""
    flow_run_actions.resume(principal, flow_run, message=fields.text(request.POST.get("message", "")) or None)
    return "Flow run resumed."


@_action("Not paused")
def pause(request: HttpRequest, principal: Principal, flow_run: FlowRun) -> str:
    """Pause a flow run and the runs of its nodes."""
    flow_run_actions.pause(principal, flow_run)
    return "Flow run paused. Runs of its nodes pause after their current steps."


@_action("Not stopped")
def stop(request: HttpRequest, principal: Principal, flow_run: FlowRun) -> str:
    """Stop a flow run and the runs of its nodes."""
    flow_run_actions.stop(principal, flow_run)
    return "Flow run stopped."


@_action("Not sent")
def send(request: HttpRequest, principal: Principal, flow_run: FlowRun) -> str:
    """Send a message to the run of a node."""
    message = fields.text(request.POST.get("message", ""))
    body = {"type": "send", "runId": request.POST.get("run", ""), "message": message}
    flow_commands.command(principal, flow_run, body)
    return "Message sent."


def _redirect(request: HttpRequest, flow_run: FlowRun) -> HttpResponse:
    url = resolve_url("runs:flow-run", flow_run.pk)
    if HtmxDetails(request):
        return HttpResponseClientRedirect(url)
    return HttpResponse(status=303, headers={"Location": url})
