"""The form that starts a run of a flow with its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from uuid_utils.compat import uuid7

from agentops.accounts.access import Action, EnteredProject
from agentops.accounts.settings_pages.page_parts import sentence
from agentops.base.http.methods import require_http_methods
from runs.actions import flow_definitions, flow_run_actions
from runs.errors import InvalidFlowInputs
from runs.lifecycle.flow_transitions import check_inputs
from runs.models import Flow
from runs.pages.flows.flow_page import text_of
from runs.pages.forms.fields import CODE, InputsField
from runs.pages.forms.form_fields import json_of
from runs.pages.forms.start import create_once, run_started_by, url_with_token
from runs.pages.page_parts import enter_project, parse_uuid, project_context
from timeline.display import clean

EXPIRED = "This form has expired. Submit it again."
#: The initial value of an input field, by its type in the JSON Schema.
_EMPTY: Mapping[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


class StartFlowForm(forms.Form):
    """The inputs of a flow run."""

    inputs = InputsField("Inputs", "A JSON object. Nodes read it as `inputs`.", CODE | {"rows": 12})
    token = forms.UUIDField(error_messages={"required": EXPIRED, "invalid": EXPIRED})

    def __init__(self, flow: Flow, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if flow.definition.get("inputs"):
            self.fields["inputs"].help_text = "A JSON object that fits the schema below. Nodes read it as `inputs`."


@require_http_methods(["GET", "HEAD", "POST"])
def start(request: HttpRequest, project: str, flow: str) -> HttpResponse:
    """Show the form, or create a flow run and redirect to it. Status 422 for invalid inputs."""
    principal, entry = enter_project(request, project, Action.OPERATE)
    stored_flow = flow_definitions.find(entry.project, flow)
    if request.method != "POST":
        token = parse_uuid(request.GET.get("form", ""))
        if token is None:
            return redirect(url_with_token(request, uuid7()))
        initial = {"inputs": json_of(_initial_inputs(stored_flow.definition.get("inputs") or {}))}
        form = StartFlowForm(stored_flow, initial=initial)
        return _render(request, entry, stored_flow, form, token, existing_run=run_started_by(request, token))
    form = StartFlowForm(stored_flow, request.POST)
    if form.is_valid():
        try:
            checked = check_inputs(stored_flow, form.cleaned_data["inputs"] or {})
            create = partial(flow_run_actions.create_checked, principal, checked)
            return redirect("runs:flow-run", create_once(request, form.cleaned_data["token"], create))
        except InvalidFlowInputs as refusal:
            form.add_error("inputs", _error_text(refusal))
    return _render(request, entry, stored_flow, form, form.cleaned_data.get("token") or uuid7(), status=422)


def _error_text(refusal: InvalidFlowInputs) -> str:
    """Return the error, after the path of the invalid input if the error is about a part of the inputs."""
    text = clean(str(refusal))
    place = clean(str(refusal.data.get("pointer", "")).removeprefix("/inputs").lstrip("/"))
    return f"{place}: {text}" if place else sentence(text)


def _render(
    request: HttpRequest,
    entry: EnteredProject,
    flow: Flow,
    form: StartFlowForm,
    token: UUID,
    *,
    existing_run: UUID | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        **project_context(entry, "flows"),
        "flow": flow,
        "title": clean(flow.title),
        "token": token,
        "form": form,
        "schema": text_of(flow.definition.get("inputs")),
        "existing_run": existing_run,
    }
    return render(request, "runs/flows/start.html", context, status=status)


def _initial_inputs(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return initial inputs: the defaults and examples of a JSON Schema, or empty values of the right type."""
    inputs: dict[str, Any] = {}
    properties = schema.get("properties")
    for name, field in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(field, Mapping):
            continue
        examples = field.get("examples")
        kind = field.get("type")
        if "default" in field:
            inputs[name] = field["default"]
        elif isinstance(examples, list) and examples:
            inputs[name] = examples[0]
        else:
            inputs[name] = _EMPTY.get(kind) if isinstance(kind, str) else None
    return inputs
