"""The form that forks a run: at which step, with which words, and what its agent has otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from uuid_utils.compat import uuid7

from agentops.http import strict_json
from agentops.http.methods import require_http_methods
from agentops.projects.access import Action, Principal, may, projects_for
from agentops.projects.requests import principal_of
from runs.access import require_edits, run_for
from runs.actions import run_actions
from runs.agents.definition import MAX_TEXT
from runs.conversation import ancestry
from runs.errors import RunRefusal
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.pages.forms import fields
from runs.pages.forms.single_use import once
from runs.pages.forms.start import CountField, OneLineField, TextField
from timeline.shown import clean

MAX_CHOICES = 200
#: Steps that the form offers, the newest ones; the API and the command line take any.
MAX_STEPS = 1000


class ObjectField(forms.CharField):
    """A JSON object, or nothing."""

    def clean(self, value: Any) -> dict[str, Any] | None:
        text = fields.text(super().clean(value)).strip()
        if not text:
            return None
        try:
            found = strict_json.parse(text)
        except ValueError as error:
            raise forms.ValidationError(f"This is no JSON: {error}.") from None
        if not isinstance(found, dict):
            raise forms.ValidationError("The settings are a JSON object.")
        return found


class ForkForm(forms.Form):
    step = forms.TypedChoiceField(
        coerce=int, error_messages={"required": "Choose a step.", "invalid_choice": "There is no such checkpoint."}
    )
    # Not stripped: what the agent is told is what was typed.
    message = TextField(required=False, strip=False, max_length=inbox.MAX_MESSAGE)
    model = OneLineField(required=False, max_length=200)
    instructions = TextField(required=False, strip=False, max_length=MAX_TEXT)
    settings = ObjectField(required=False, max_length=MAX_TEXT)
    max_steps = CountField(required=False)
    token = forms.UUIDField()

    def __init__(self, run: AgentRun, steps: Sequence[int], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.frozen = run.agent_config
        choice = self.fields["step"]
        assert isinstance(choice, forms.TypedChoiceField)
        choice.choices = [(step, f"after step {step}") for step in steps]

    @property
    def instructions_shown(self) -> str:
        """As the box has them at first; sent back like this, they are unchanged."""
        return fields.text(clean(str(self.frozen.get("instructions") or "")))

    def changes(self) -> dict[str, Any]:
        """What is otherwise than before. A box that was left empty changes nothing, but for the instructions."""
        sent = self.cleaned_data
        found = {name: sent[name] for name in ("model", "max_steps", "settings") if sent[name] not in (None, "")}
        if found.get("model") == self.frozen.get("model"):
            del found["model"]
        if sent["instructions"] != self.instructions_shown and "instructions" in self.data:
            found["instructions"] = sent["instructions"]
        return found

    def refuse(self, refusal: RunRefusal) -> None:
        """Say a refusal of the domain at the field that it is about."""
        pointer = str(refusal.data.get("pointer", "")).removeprefix("/agent").removeprefix("/").partition("/")[0]
        self.add_error(pointer if pointer in self.fields else "step", f"{refusal}.")


@require_http_methods(["GET", "HEAD", "POST"])
def fork(request: HttpRequest, run_id: UUID) -> HttpResponse:
    principal = principal_of(request)
    among = AgentRun.objects.select_related("project").defer("prompt", "result", "summary", "structured_output")
    run = run_for(principal, run_id, Action.OPERATE, among=among)
    steps = ancestry.steps_of(run, MAX_STEPS)
    if request.method != "POST":
        form = ForkForm(run, steps, initial=_initial(request, run, steps))
        return _shown(request, principal, run, form, token=uuid7())
    form = ForkForm(run, steps, request.POST)
    if form.is_valid():
        try:
            new = once(request, form.cleaned_data["token"], partial(_fork, principal, run, form))
        except RunRefusal as refusal:
            if refusal.status not in {409, 422}:
                raise
            form.refuse(refusal)
        else:
            messages.success(request, "Forked. This is the new run; the other one stays as it is.")
            return redirect("runs:detail", new)
    # It keeps its token: it has forked nothing yet.
    return _shown(request, principal, run, form, token=form.cleaned_data.get("token") or uuid7(), status=422)


def _fork(principal: Principal, run: AgentRun, form: ForkForm) -> AgentRun:
    sent, changes = form.cleaned_data, form.changes()
    require_edits(principal, run, changes)
    message = sent["message"] if sent["message"].strip() else None
    return run_actions.fork(principal, run, step=sent["step"], message=message, agent=changes)


def _initial(request: HttpRequest, run: AgentRun, steps: Sequence[int]) -> dict[str, Any]:
    """The step that a link names, or the newest one."""
    asked = request.GET.get("step", "")
    chosen = next((step for step in steps if str(step) == asked), steps[0] if steps else "")
    return {"step": chosen, "model": clean(str(run.agent_config.get("model") or ""))}


def _shown(
    request: HttpRequest, principal: Principal, run: AgentRun, form: ForkForm, *, token: UUID, status: int = 200
) -> HttpResponse:
    context = {
        "project": run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "run": run,
        "run_title": clean(run.title) or "(without a title)",
        "form": form,
        "instructions": form.data.get("instructions", form.instructions_shown),
        "offers_settings": may(principal, Action.CONFIGURE, run.project_id),
        "token": token,
        "cap": settings.AGENTOPS_MAX_TOTAL_STEPS,
    }
    return render(request, "runs/fork.html", context, status=status)
