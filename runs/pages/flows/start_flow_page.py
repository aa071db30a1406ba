"""The form that starts a run of a flow with its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from uuid_utils.compat import uuid7

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.base.http import strict_json
from agentops.base.http.methods import require_http_methods
from runs.actions import flow_definitions, flow_run_actions
from runs.errors import InvalidFlowInputs
from runs.lifecycle.flow_creation import check_inputs
from runs.models import Flow
from runs.pages.agents.agents_page import page_context
from runs.pages.flows.flow_page import text_of
from runs.pages.forms import fields
from runs.pages.forms.form_fields import json_of
from runs.pages.forms.single_use import create_once, run_started_by
from runs.pages.forms.start import parse_token, url_with_token
from timeline.display import clean

#: The initial value of an input field, by its type in the JSON Schema.
_EMPTY: Mapping[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


@require_http_methods(["GET", "HEAD", "POST"])
def start(request: HttpRequest, project: str, flow: str) -> HttpResponse:
    """Show the form, or create a flow run and redirect to it. Status 422 for invalid inputs."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    found = flow_definitions.find(entry.project, flow)
    if request.method != "POST":
        token = parse_token(request.GET.get("form", ""))
        if token is None:
            return redirect(url_with_token(request, uuid7()))
        text = json_of(_begin(found.definition.get("inputs") or {}))
        return _render(request, entry, found, token, text)
    token = parse_token(request.POST.get("token", ""))
    text = fields.text(request.POST.get("inputs", ""))
    if token is None:
        return _render(
            request, entry, found, uuid7(), text, error="This form has expired. Submit it again.", status=422
        )
    try:
        checked = check_inputs(found, _parse(text))
        run_id = create_once(request, token, partial(flow_run_actions.create_checked, principal, checked))
    except InvalidFlowInputs as refusal:
        return _render(request, entry, found, token, text, error=_told(refusal), status=422)
    return redirect("runs:flow-run", run_id)


def _parse(text: str) -> dict[str, Any]:
    try:
        inputs = strict_json.parse(text.strip() or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidFlowInputs(f"the inputs are not JSON: {error}", pointer="/inputs") from None
    if not isinstance(inputs, dict):
        raise InvalidFlowInputs("the inputs must be a JSON object", pointer="/inputs")
    return inputs


def _told(refusal: InvalidFlowInputs) -> str:
    text = clean(str(refusal))
    place = clean(str(refusal.data.get("pointer", "")).removeprefix("/inputs").lstrip("/"))
    return f"{place}: {text}" if place else f"{text[:1].upper()}{text[1:]}."


def _render(
    request: HttpRequest,
    entry: EnteredProject,
    flow: Flow,
    token: UUID,
    text: str,
    *,
    error: str = "",
    status: int = 200,
) -> HttpResponse:
    context = {
        **page_context(entry, "flows"),
        "flow": flow,
        "title": clean(flow.title),
        "token": token,
        "text": text,
        "error": error,
        "schema": text_of(flow.definition.get("inputs")),
        "existing_run": run_started_by(request, token) if request.method != "POST" else None,
    }
    return render(request, "runs/flows/start.html", context, status=status)


def _begin(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return initial inputs: the defaults and examples of a JSON Schema, or empty values of the right type."""
    begun = {}
    properties = schema.get("properties")
    for name, field in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(field, Mapping):
            continue
        examples = field.get("examples")
        kind = field.get("type")
        if "default" in field:
            begun[name] = field["default"]
        elif isinstance(examples, list) and examples:
            begun[name] = examples[0]
        else:
            begun[name] = _EMPTY.get(kind) if isinstance(kind, str) else None
    return begun
