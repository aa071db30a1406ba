"""The actions of an admin on a sink: enable, test, rotate the secret, send again, delete."""

from __future__ import annotations

import json
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other, sentence
from agentops.base.http.methods import require_http_methods, require_POST
from agentops.base.refusals import InvalidQuery, NotFound
from runs.models import Delivery, Sink
from runs.pages.sinks.shown_sink import get_sink
from runs.pages.sinks.sink_page import sink_context
from runs.telemetry import sink_changes
from runs.telemetry.sink_changes import SinkChange
from runs.telemetry.sink_kind import InvalidSink


@require_POST
def switch(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Enable or disable a sink: `enabled` is "yes" or "no". An enabled sink continues where it stopped."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    choice = request.POST.get("enabled", "")
    if choice not in ("yes", "no"):
        raise InvalidQuery("enabled must be yes or no")
    try:
        sink_changes.change(sink, SinkChange(is_enabled=choice == "yes"), by=principal)
    except InvalidSink as refusal:
        messages.error(request, f"The sink was not changed. {sentence(refusal)}")
    else:
        done = "enabled. It continues where it was" if choice == "yes" else "disabled. It keeps its position"
        messages.success(request, f"Sink {done}.")
    return back(entry, sink)


@require_POST
def test(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Have a worker send a test event. The page of the sink shows the response."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    delivery = sink_changes.send_test(sink, by=principal)
    return back(entry, sink, f"?test={delivery.pk}#test")


@require_POST
def rotate(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Show a new secret of a webhook, once. `seen` holds the hints of the secrets that it replaces."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    if request.POST.get("seen") != json.dumps(sink.secret_hints, sort_keys=True):
        messages.info(request, "Nothing was rotated: the secret has changed since the page was loaded.")
        return back(entry, sink)
    try:
        secret = sink_changes.rotate_secret(sink, by=principal)
    except InvalidSink as refusal:
        messages.error(request, sentence(refusal))
        return back(entry, sink)
    return show_secret(request, entry, sink, secret, is_new=False)


@require_POST
def resend(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Send a delivery again: `delivery` is its ID, or "dead" for all deliveries that were given up."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    choice = request.POST.get("delivery", "")
    if choice == "dead":
        count = sink_changes.resend_dead(sink, by=principal)
        text = (
            f"{count} deliver{'y' if count == 1 else 'ies'} will be sent again, with the same ID{'s' * (count != 1)}."
        )
    else:
        sink_changes.resend(_delivery(sink, choice), by=principal)
        text = "The delivery will be sent again, with the same ID."
    if not sink.is_enabled:
        text += " It waits until the sink is enabled."
    elif sink.is_paused:
        text += " It waits until the telemetry of the project is switched on."
    messages.success(request, text)
    return back(entry, sink, "#deliveries")


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Ask for confirmation, or delete the sink named `name`."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    if request.method != "POST":
        return render(request, "runs/sinks/delete.html", sink_context(entry, sink))
    if request.POST.get("name") != sink.name:
        raise InvalidQuery("send the name of the sink that is deleted")
    sink_changes.remove(sink, by=principal)
    messages.success(request, f"{sink.name} deleted.")
    return see_other("runs:sinks", entry.project.slug)


def show_secret(request: HttpRequest, entry: EnteredProject, sink: Sink, secret: str, *, is_new: bool) -> HttpResponse:
    """Show the secret of a webhook. The response must not be cached."""
    context = {**sink_context(entry, get_sink(entry, sink.pk)), "secret": secret, "is_new": is_new}
    response = render(request, "runs/sinks/secret.html", context)
    response.headers["Cache-Control"] = "no-store"
    return response


def back(entry: EnteredProject, sink: Sink, suffix: str = "") -> HttpResponse:
    """Redirect to the page of a sink."""
    address = resolve_url("runs:sink", entry.project.slug, sink.pk)
    return HttpResponse(status=303, headers={"Location": f"{address}{suffix}"})


def _delivery(sink: Sink, text: str) -> Delivery:
    try:
        delivery_id = UUID(text)
    except ValueError:
        raise InvalidQuery("delivery must be the ID of a delivery, or dead") from None
    delivery = Delivery.objects.select_related("sink__project").filter(sink=sink, pk=delivery_id).first()
    if delivery is None:
        raise NotFound("no such delivery", code="sink_not_found")
    return delivery
