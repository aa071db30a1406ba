"""The views that create, change, enable, test and delete sinks, rotate secrets, send again, and switch telemetry."""

from __future__ import annotations

import json
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from agentops.accounts.access import Action, EnteredProject
from agentops.accounts.memberships import change_project
from agentops.accounts.settings_pages.page_parts import see_other, sentence
from agentops.base.http.methods import require_http_methods, require_POST
from agentops.base.refusals import InvalidQuery, NotFound
from runs.models import Delivery, Sink
from runs.pages.page_parts import enter_project, parse_enabled, project_context
from runs.pages.settings.sink_fields import SinkForm
from runs.pages.settings.sink_page import get_sink, sink_context
from runs.telemetry import sink_changes
from runs.telemetry.sink_changes import SinkChange
from runs.telemetry.sink_kind import InvalidSink, SinkKind
from runs.telemetry.sink_targets import KINDS, kind_of
from timeline.events.base import EVENT_TYPES

METHODS = ["GET", "HEAD", "POST"]


@sensitive_post_parameters()
@sensitive_variables()
@require_http_methods(METHODS)
def new(request: HttpRequest, project: str) -> HttpResponse:
    """Show the kinds, or the form of the kind `kind`; or create a sink. Status 422 for an invalid form."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    chosen = request.GET.get("kind", "") if request.method != "POST" else request.POST.get("kind", "")
    if request.method != "POST" and not chosen:
        context = {**project_context(entry, "settings"), "kinds": [kind_of(name) for name in KINDS.names()]}
        return render(request, "runs/sinks/kinds.html", context)
    kind = _kind(chosen)
    if request.method != "POST":
        return _render(request, entry, SinkForm(kind, None))
    form = SinkForm(kind, None, request.POST)
    change = form.change()
    sink, secret = Sink(project=entry.project, kind=chosen), None
    try:
        # Run this check even if the form has errors, so that all errors are shown together.
        sink_changes.check(sink, change)
        if not form.errors:
            is_first = form.cleaned_data["from_start"]
            sink, secret = sink_changes.create(entry.project, chosen, change, by=principal, from_start=is_first)
    except InvalidSink as refusal:
        form.add_problems(refusal.problems)
    if form.errors:
        return _render(request, entry, form)
    if secret:
        return show_secret(request, entry, sink, secret, is_new=True)
    messages.success(request, f"{sink.name} created. Send a test to see whether it is accepted.")
    return back(entry, sink)


@sensitive_post_parameters()
@sensitive_variables()
@require_http_methods(METHODS)
def edit(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Show the form of a sink, or change it. Empty secret fields keep their secrets. Status 422 for an invalid form."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    try:
        form = SinkForm(kind_of(sink.kind), sink, request.POST if request.method == "POST" else None)
    except InvalidSink as refusal:
        messages.error(request, f"The sink cannot be changed. {sentence(refusal)}")
        return back(entry, sink)
    if not form.is_bound:
        return _render(request, entry, form)
    change = form.change()
    try:
        sink_changes.check(sink, change)
        if not form.errors:
            sink_changes.change(sink, change, by=principal)
    except InvalidSink as refusal:
        form.add_problems(refusal.problems)
    if form.errors:
        return _render(request, entry, form)
    messages.success(request, "Sink saved. It continues where it was, with the new settings.")
    return back(entry, sink)


def _kind(name: str) -> SinkKind:
    """Return a kind of sinks. Raises InvalidQuery if it is unknown."""
    try:
        return kind_of(name)
    except InvalidSink:
        raise InvalidQuery(f"kind must be one of {', '.join(KINDS.names())}") from None


def _render(request: HttpRequest, entry: EnteredProject, form: SinkForm) -> HttpResponse:
    """Show the form of a sink, with status 422 if it has errors."""
    count = form.error_count
    if count:
        form.ask_for_secrets_again()
    context = {
        **project_context(entry, "settings"),
        "form": form,
        "error_count": count,
        "kind": form.kind,
        "default_types": list(form.kind.default_types),
        "all_types": sorted(EVENT_TYPES),
    }
    return render(request, "runs/sinks/form.html", context, status=422 if count else 200)


@require_POST
def switch(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Enable or disable a sink: `enabled` is "yes" or "no". An enabled sink continues where it stopped."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    enables = parse_enabled(request)
    try:
        sink_changes.change(sink, SinkChange(is_enabled=enables), by=principal)
    except InvalidSink as refusal:
        messages.error(request, f"The sink was not changed. {sentence(refusal)}")
    else:
        effect = "enabled. It continues where it was" if enables else "disabled. It keeps its position"
        messages.success(request, f"Sink {effect}.")
    return back(entry, sink)


@require_POST
def test(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Have a worker send a test event. The page of the sink shows the response."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    delivery = sink_changes.send_test(sink, by=principal)
    return back(entry, sink, f"?test={delivery.pk}#test")


@require_POST
def rotate(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Show a new secret of a webhook, once. `seen` holds the hints of the secrets that it replaces."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
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
    principal, entry = enter_project(request, project, Action.CONFIGURE)
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
    principal, entry = enter_project(request, project, Action.CONFIGURE)
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
    return see_other(resolve_url("runs:sink", entry.project.slug, sink.pk) + suffix)


def _delivery(sink: Sink, text: str) -> Delivery:
    """Return a delivery of the sink by its ID. Raises InvalidQuery or NotFound."""
    try:
        delivery_id = UUID(text)
    except ValueError:
        raise InvalidQuery("delivery must be the ID of a delivery, or dead") from None
    delivery = Delivery.objects.select_related("sink__project").filter(sink=sink, pk=delivery_id).first()
    if delivery is None:
        raise NotFound("no such delivery", code="sink_not_found")
    return delivery


#: Value of `telemetry` → message for the user.
_TELEMETRY_MESSAGES = {
    "on": "Telemetry of this project is on. Its sinks continue where they were.",
    "off": "Telemetry of this project is off. Its sinks pause, and those of the site leave it out.",
}


@require_POST
def switch_telemetry(request: HttpRequest, project: str) -> HttpResponse:
    """Enable or disable the export of the project's events: `telemetry` is "on" or "off"."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    choice = request.POST.get("telemetry", "")
    if choice not in _TELEMETRY_MESSAGES:
        raise InvalidQuery("telemetry must be on or off")
    change_project(entry.project, exports_telemetry=choice == "on", actor=principal)
    messages.success(request, _TELEMETRY_MESSAGES[choice])
    return see_other("runs:sinks", entry.project.slug)
