"""The form that forks a run: checkpoint, message and changes to the agent."""

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

from agentops.accounts.access import Action, Principal, may
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import add_refusal
from agentops.base.http.methods import require_http_methods
from agentops.base.refusals import Conflict, Invalid
from runs.access import require_edits, run_for
from runs.actions import run_actions
from runs.agents.definition import MAX_TEXT
from runs.conversation import ancestry
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.pages.forms.fields import CODE, NUMBER, CountField, ObjectField, OneLineField, TextField, text
from runs.pages.forms.start import create_once
from runs.pages.run.any_run import page_context
from timeline.display import clean

#: Number of newest checkpoints in the form; the API and the command line accept any.
MAX_STEPS = 1000


class ForkForm(forms.Form):
    """The fields of a fork. `steps` are the checkpoints to choose from."""

    step = forms.TypedChoiceField(
        coerce=int,
        label="Checkpoint",
        help_text=f"The step count continues from there. A lineage ends at step {settings.AGENTOPS_MAX_TOTAL_STEPS}.",
        error_messages={
            "required": "Choose a checkpoint.",
            "invalid_choice": "This checkpoint does not exist. Choose another.",
        },
    )
    message = TextField(
        "Message",
        "Sent to the agent as the next user message. Leave empty to repeat the model call without a new message; if "
        "the conversation ends with a final answer, “continue” is sent.",
        {"rows": 4},
        max_length=inbox.MAX_MESSAGE,
    )
    model = OneLineField("Model", max_length=200)
    instructions = TextField(
        "Instructions",
        "Replaces the instructions from the first model call of the new run. The original run keeps its instructions.",
        {"rows": 6},
        max_length=MAX_TEXT,
    )
    max_steps = CountField("Step budget", attrs=NUMBER)
    settings = ObjectField(
        "Settings as JSON", "Replaces all settings. Leave empty to keep them.", CODE | {"rows": 4}, max_length=MAX_TEXT
    )
    #: The token of the form, by which it creates only one run.
    token = forms.UUIDField()

    def __init__(self, run: AgentRun, steps: Sequence[int], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.agent_config = run.agent_config
        choice = self.fields["step"]
        assert isinstance(choice, forms.TypedChoiceField)
        choice.choices = [(step, f"After step {step}") for step in steps]
        self.fields["max_steps"].widget.attrs["placeholder"] = run.max_steps
        # As the field displays them: a submission with this value changes nothing.
        self.initial["instructions"] = text(clean(str(self.agent_config.get("instructions") or "")))

    @property
    def text_fields(self) -> list[forms.BoundField]:
        """The fields that all operators get, for the template. The settings require a permission."""
        return [self[name] for name in ("step", "message", "model", "instructions", "max_steps")]

    def changes(self) -> dict[str, Any]:
        """Return the changed fields of the agent. Empty fields change nothing, except the instructions."""
        cleaned = self.cleaned_data
        names = ("model", "max_steps", "settings")
        changes = {name: cleaned[name] for name in names if cleaned[name] not in (None, "")}
        if changes.get("model") == self.agent_config.get("model"):
            del changes["model"]
        if cleaned["instructions"] != self.initial["instructions"] and "instructions" in self.data:
            changes["instructions"] = cleaned["instructions"]
        return changes


@require_http_methods(["GET", "HEAD", "POST"])
def fork(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the fork form, or fork the run and redirect to the new one. Status 422 for an invalid form."""
    principal = principal_of(request)
    among = AgentRun.objects.select_related("project").defer("prompt", "result", "summary", "structured_output")
    run = run_for(principal, run_id, Action.OPERATE, among=among)
    steps = ancestry.steps_of(run, MAX_STEPS)
    if request.method != "POST":
        form = ForkForm(run, steps, initial=_initial(request, run, steps))
        return _render(request, principal, run, form, token=uuid7())
    form = ForkForm(run, steps, request.POST)
    if form.is_valid():
        try:
            new = create_once(request, form.cleaned_data["token"], partial(_fork, principal, run, form))
        except (Conflict, Invalid) as refusal:
            add_refusal(form, refusal, {"": "step"})
        else:
            messages.success(request, "Run forked. Showing the new run.")
            return redirect("runs:detail", new)
    # Keep the token: it has not been used.
    return _render(request, principal, run, form, token=form.cleaned_data.get("token") or uuid7(), status=422)


def _fork(principal: Principal, run: AgentRun, form: ForkForm) -> AgentRun:
    """Fork the run with the values of the form. Raises Forbidden if the user may not change the settings."""
    cleaned, changes = form.cleaned_data, form.changes()
    require_edits(principal, run, changes)
    message = cleaned["message"] if cleaned["message"].strip() else None
    return run_actions.fork(principal, run, step=cleaned["step"], message=message, agent=changes)


def _initial(request: HttpRequest, run: AgentRun, steps: Sequence[int]) -> dict[str, Any]:
    """Return the initial values: the checkpoint in the query parameter `step`, or the newest one."""
    requested = request.GET.get("step", "")
    chosen = next((step for step in steps if str(step) == requested), steps[0] if steps else "")
    return {"step": chosen, "model": clean(str(run.agent_config.get("model") or ""))}


def _render(
    request: HttpRequest, principal: Principal, run: AgentRun, form: ForkForm, *, token: UUID, status: int = 200
) -> HttpResponse:
    context = {
        **page_context(principal, run),
        "run": run,
        "run_title": clean(run.title) or "(untitled)",
        "form": form,
        "offers_settings": may(principal, Action.CONFIGURE, run.project_id),
        "token": token,
    }
    return render(request, "runs/forms/fork.html", context, status=status)
