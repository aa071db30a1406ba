"""The form that starts a run, and forms that create only one run.

Such a form has a token. If it is submitted again, by a double click or after going back, its run is displayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from uuid_utils.compat import uuid7

from agentops.accounts.access import Action, Principal
from agentops.accounts.errors import AuthRequired
from agentops.accounts.models import Project
from agentops.accounts.settings_pages.page_parts import add_refusal
from agentops.base.http.methods import require_http_methods
from agentops.base.refusals import Invalid
from runs.actions import agent_definitions, run_actions
from runs.lifecycle import inbox
from runs.lifecycle.title_limits import MAX_LABEL, MAX_LABELS, MAX_TITLE
from runs.models import Agent, AgentRun, FlowRun
from runs.pages import commands
from runs.pages.forms.fields import NUMBER, CountField, OneLineField, TextField
from runs.pages.page_parts import MAX_CHOICES, enter_project, parse_uuid, project_context
from timeline.display import clean

#: Key of the session: pairs of the token of a submitted form and the ID of its run.
STARTED = "started"
#: Number of submitted forms that a session remembers.
MAX_REMEMBERED = 20


def create_once(request: HttpRequest, token: UUID, make: Callable[[], AgentRun | FlowRun]) -> UUID:
    """Return the ID of the run created by the form with `token`; call `make` only for its first submission.

    The transaction that creates the run also stores its ID in the session. Concurrent submissions wait for the lock
    on the session's row and then find the ID there. Raises AuthRequired if the session has ended.
    """
    key = request.session.session_key
    with transaction.atomic():
        if Session.objects.select_for_update().filter(pk=key).first() is None:
            raise AuthRequired  # the session has ended
        # Read again after taking the lock: the request's own session was read before it.
        session = type(request.session)(key)
        existing_run = _started_by(session, token)
        if existing_run is not None:
            return existing_run
        run = make()
        session[STARTED] = [*session.get(STARTED, []), [str(token), str(run.pk)]][-MAX_REMEMBERED:]
        session.save()
    run_id: UUID = run.pk
    return run_id


def run_started_by(request: HttpRequest, token: UUID) -> UUID | None:
    """Return the ID of the run created by the form with `token`, or None."""
    return _started_by(request.session, token)


def _started_by(session: SessionBase, token: UUID) -> UUID | None:
    started: list[list[str]] = session.get(STARTED, [])
    return next((UUID(run_id) for used_token, run_id in started if used_token == str(token)), None)


class LabelsField(OneLineField):
    """Labels separated by commas. Returns a list without duplicates."""

    def clean(self, value: Any) -> list[str]:
        labels = list(dict.fromkeys(filter(None, (label.strip() for label in super().clean(value).split(",")))))
        if len(labels) > MAX_LABELS:
            raise forms.ValidationError(f"Enter at most {MAX_LABELS} labels.")
        if any(len(label) > MAX_LABEL for label in labels):
            raise forms.ValidationError(f"Labels can have at most {MAX_LABEL} characters.")
        return labels


class StartForm(forms.Form):
    """The fields of a new run. `agents` are the agents to choose from."""

    agent = forms.ChoiceField(error_messages={"required": "Choose an agent."})
    prompt = TextField(
        "Prompt",
        "The task for the agent. If empty, an agent that replays a recording uses the recorded prompt.",
        {"rows": 8},
        max_length=inbox.MAX_MESSAGE,
    )
    title = OneLineField("Title", "Default: the first line of the prompt.", max_length=MAX_TITLE)
    labels = LabelsField("Labels", "Separate labels with commas.")
    max_steps = CountField(
        "Step budget",
        f"From 1 to {settings.AGENTOPS_MAX_TOTAL_STEPS} steps. Default: the agent's setting.",
        NUMBER,
    )
    token = forms.UUIDField()

    def __init__(self, agents: Sequence[Agent], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.agents = agents
        choice = self.fields["agent"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [(agent.slug, agent.slug) for agent in agents]
        choice.error_messages["invalid_choice"] = "This agent no longer exists. Choose another one."

    @property
    def text_fields(self) -> list[forms.BoundField]:
        """The fields after the choice of the agent, for the template."""
        return [self[name] for name in ("prompt", "title", "labels", "max_steps")]


@require_http_methods(["GET", "HEAD", "POST"])
def start(request: HttpRequest, project: str) -> HttpResponse:
    """Show the start form, or create a run and redirect to it. Status 422 for an invalid form."""
    principal, entry = enter_project(request, project, Action.OPERATE)
    owner = entry.project
    # Without the instructions, which can be long.
    columns = ("slug", "provider", "model", "tools", "max_steps")
    agents = list(Agent.objects.filter(project=owner).only(*columns).order_by("slug")[:MAX_CHOICES])
    context = project_context(entry)
    if request.method == "POST":
        return _submit(request, StartForm(agents, request.POST), partial(_create_run, principal, owner), context)
    token = parse_uuid(request.GET.get("form", ""))
    if token is None:
        return redirect(url_with_token(request, uuid7()))
    chosen = request.GET.get("agent") or (agents[0].slug if len(agents) == 1 else "")
    form = StartForm(agents, initial={"agent": chosen})
    return _render(request, form, token, {**context, "existing_run": run_started_by(request, token)})


def _submit(
    request: HttpRequest, form: StartForm, create_run: Callable[[dict[str, Any]], AgentRun], context: dict[str, Any]
) -> HttpResponse:
    """Create the run and redirect to it, or show the form again with its errors."""
    if form.is_valid():
        try:
            run_id = create_once(request, form.cleaned_data["token"], partial(create_run, form.cleaned_data))
            return redirect("runs:detail", run_id)
        except Invalid as refusal:
            add_refusal(form, refusal, {"": "agent"})
    # Keep the token: it has not been used.
    return _render(request, form, form.cleaned_data.get("token") or uuid7(), context, status=422)


def _render(
    request: HttpRequest, form: StartForm, token: UUID, context: dict[str, Any], *, status: int = 200
) -> HttpResponse:
    """Show the form. `token` identifies it, so that it creates only one run."""
    context |= {
        "form": form,
        "token": token,
        "agents": [_choice(agent) for agent in form.agents],
        "commands": commands.first_run(context["project"])[:1],
        "recordings": agent_definitions.FIXTURES,
    }
    return render(request, "runs/forms/start.html", context, status=status)


def _choice(agent: Agent) -> dict[str, Any]:
    """Return what the form shows of an agent, redacted."""
    return {
        "slug": agent.slug,
        "provider": clean(agent.provider),
        "model": clean(agent.model),
        "tools": [clean(str(tool)) for tool in agent.tools],
        "max_steps": agent.max_steps,
    }


def url_with_token(request: HttpRequest, token: UUID) -> str:
    """Return the form's URL with its token: pages are not cached, so going back requests the same form again."""
    query = request.GET.copy()
    query["form"] = str(token)
    return f"{request.path}?{query.urlencode()}"


def _create_run(principal: Principal, project: Project, values: dict[str, Any]) -> AgentRun:
    return run_actions.create(
        principal,
        project,
        agent_definitions.find(project, values["agent"]),
        values["prompt"] if values["prompt"].strip() else None,
        title=values["title"],
        labels=values["labels"],
        max_steps=values["max_steps"],
    )
