"""The form that starts a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from uuid_utils.compat import uuid7

from agentops.accounts.access import Action, Principal, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import add_refusal
from agentops.base.http.methods import require_http_methods
from agentops.base.refusals import Invalid
from runs.actions import agent_definitions, run_actions
from runs.lifecycle import inbox
from runs.lifecycle.title_limits import MAX_LABEL, MAX_LABELS, MAX_TITLE
from runs.models import Agent, AgentRun
from runs.pages import commands
from runs.pages.forms.fields import NUMBER, CountField, OneLineField, TextField
from runs.pages.forms.single_use import create_once, run_started_by
from timeline.display import clean

MAX_CHOICES = 200


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
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    owner = entry.project
    # Without the instructions, which can be long.
    columns = ("slug", "provider", "model", "tools", "max_steps")
    agents = list(Agent.objects.filter(project=owner).only(*columns).order_by("slug")[:MAX_CHOICES])
    context = {
        "project": owner,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
    }
    if request.method == "POST":
        return _submit(request, StartForm(agents, request.POST), partial(_create_run, principal, owner), context)
    token = parse_token(request.GET.get("form", ""))
    if token is None:
        return redirect(url_with_token(request, uuid7()))
    form = StartForm(agents, initial={"agent": _initial_agent(request, agents)})
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
    context |= {
        "form": form,
        "token": token,
        "agents": [_choice(agent) for agent in form.agents],
        "commands": commands.first_run(context["project"])[:1],
        "recordings": agent_definitions.RECORDINGS,
    }
    return render(request, "runs/forms/start.html", context, status=status)


def _choice(agent: Agent) -> dict[str, Any]:
    """Return the parts of an agent's definition that the form displays, without secrets."""
    return {
        "slug": agent.slug,
        "provider": clean(agent.provider),
        "model": clean(agent.model),
        "tools": [clean(str(tool)) for tool in agent.tools],
        "max_steps": agent.max_steps,
    }


def parse_token(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def url_with_token(request: HttpRequest, token: UUID) -> str:
    """Return the form's URL with its token: pages are not cached, so going back requests the same form again."""
    query = request.GET.copy()
    query["form"] = str(token)
    return f"{request.path}?{query.urlencode()}"


def _initial_agent(request: HttpRequest, agents: Sequence[Agent]) -> str:
    """Return the agent in the query parameter `agent`, or the only agent of the project."""
    return request.GET.get("agent") or (agents[0].slug if len(agents) == 1 else "")


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
