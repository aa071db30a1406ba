"""The forms that create and change a sink."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import sentence
from agentops.base.http.methods import require_http_methods
from agentops.base.refusals import InvalidQuery
from runs.models import Sink
from runs.pages.agents.agents_page import page_context
from runs.pages.sinks.shown_sink import get_sink
from runs.pages.sinks.sink_actions import back, show_secret
from runs.pages.sinks.sink_fields import SinkForm
from runs.telemetry import sink_changes
from runs.telemetry.kind_catalogue import KINDS, kind_of
from runs.telemetry.sink_kind import InvalidSink, SinkKind
from timeline.events.vocabulary import EVENT_TYPES

METHODS = ["GET", "HEAD", "POST"]


@sensitive_post_parameters()
@sensitive_variables()
@require_http_methods(METHODS)
def new(request: HttpRequest, project: str) -> HttpResponse:
    """Show the kinds, or the form of the kind `kind`; or create a sink. Status 422 for an invalid form."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    chosen = request.GET.get("kind", "") if request.method != "POST" else request.POST.get("kind", "")
    if request.method != "POST" and not chosen:
        context = {**page_context(entry, "settings"), "kinds": [kind_of(name) for name in KINDS.names()]}
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
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
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
    try:
        return kind_of(name)
    except InvalidSink:
        raise InvalidQuery(f"kind must be one of {', '.join(KINDS.names())}") from None


def _render(request: HttpRequest, entry: EnteredProject, form: SinkForm) -> HttpResponse:
    count = form.error_count
    if count:
        form.say_what_is_not_sent_back()
    context = {
        **page_context(entry, "settings"),
        "form": form,
        "error_count": count,
        "kind": form.kind,
        "default_types": list(form.kind.default_types),
        "all_types": sorted(EVENT_TYPES),
    }
    return render(request, "runs/sinks/form.html", context, status=422 if count else 200)
