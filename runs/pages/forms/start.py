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

from agentops.http.methods import require_http_methods
from agentops.projects.access import Action, Principal, project_for, projects_for
from agentops.projects.models import Project
from agentops.projects.requests import principal_of
from runs.actions import agent_definitions, run_actions
from runs.errors import InvalidInput
from runs.lifecycle import inbox
from runs.lifecycle.title_limits import MAX_LABEL, MAX_LABELS, MAX_TITLE
from runs.models import Agent, AgentRun
from runs.pages import commands
from runs.pages.forms import fields
from runs.pages.forms.single_use import once, started_by
from timeline.shown import clean

MAX_CHOICES = 200


class TextField(forms.CharField):
    """A text of any lines."""

    def to_python(self, value: Any) -> str:
        return fields.text(super().to_python(value) or "")


class OneLineField(forms.CharField):
    """A text of one line."""

    def to_python(self, value: Any) -> str:
        return fields.line(super().to_python(value) or "")


class LabelsField(OneLineField):
    """A comma list; each label once."""

    def clean(self, value: Any) -> list[str]:
        labels = list(dict.fromkeys(filter(None, (label.strip() for label in super().clean(value).split(",")))))
        if len(labels) > MAX_LABELS:
            raise forms.ValidationError(f"A run has at most {MAX_LABELS} labels.")
        if any(len(label) > MAX_LABEL for label in labels):
            raise forms.ValidationError(f"A label has at most {MAX_LABEL} characters.")
        return labels


class CountField(forms.CharField):
    """A whole number, or nothing. Its bounds are the domain's to say."""

    def clean(self, value: Any) -> int | None:
        try:
            return fields.whole(super().clean(value))
        except ValueError as error:
            raise forms.ValidationError(f"{error}.") from None


class StartForm(forms.Form):
    agent = forms.ChoiceField(error_messages={"required": "Choose an agent."})
    # Not stripped: what the agent is told is what was typed.
    prompt = TextField(required=False, strip=False, max_length=inbox.MAX_MESSAGE)
    title = OneLineField(required=False, max_length=MAX_TITLE)
    labels = LabelsField(required=False)
    max_steps = CountField(required=False)
    token = forms.UUIDField()

    def __init__(self, known: Sequence[Agent], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.known = known
        choice = self.fields["agent"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [(agent.slug, agent.slug) for agent in known]
        choice.error_messages["invalid_choice"] = "There is no such agent any more: choose another."

    def refuse(self, refusal: InvalidInput) -> None:
        """Say a refusal of the domain at the field that it is about. Without one it is the agent that will not do."""
        pointer = str(refusal.data.get("pointer", "")).removeprefix("/")
        self.add_error(pointer if pointer in {"prompt", "max_steps"} else "agent", f"{refusal}.")


@require_http_methods(["GET", "HEAD", "POST"])
def start(request: HttpRequest, project: str) -> HttpResponse:
    principal = principal_of(request)
    owner = project_for(principal, project, Action.OPERATE)
    # Without the instructions, which may be as long as they like.
    columns = ("slug", "provider", "model", "tools", "max_steps")
    known = list(Agent.objects.filter(project=owner).only(*columns).order_by("slug")[:MAX_CHOICES])
    context = {"project": owner, "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES]}
    if request.method == "POST":
        return _sent(request, StartForm(known, request.POST), partial(_begin, principal, owner), context)
    token = _token(request.GET.get("form", ""))
    if token is None:
        return redirect(_address(request, uuid7()))
    form = StartForm(known, initial={"agent": _chosen(request, known)})
    return _shown(request, form, token, {**context, "earlier": started_by(request, token)})


def _sent(
    request: HttpRequest, form: StartForm, begin: Callable[[dict[str, Any]], AgentRun], context: dict[str, Any]
) -> HttpResponse:
    """To the run that the form starts, or back to the form with what is wrong and all that was typed."""
    if form.is_valid():
        try:
            run_id = once(request, form.cleaned_data["token"], partial(begin, form.cleaned_data))
            return redirect("runs:detail", run_id)
        except InvalidInput as refusal:
            form.refuse(refusal)
    # It keeps its token: it has started nothing yet.
    return _shown(request, form, form.cleaned_data.get("token") or uuid7(), context, status=422)


def _shown(
    request: HttpRequest, form: StartForm, token: UUID, context: dict[str, Any], *, status: int = 200
) -> HttpResponse:
    context |= {
        "form": form,
        "token": token,
        "agents": [_choice(agent) for agent in form.known],
        "commands": commands.first_run(context["project"])[:1],
        "recordings": agent_definitions.RECORDINGS,
        "cap": settings.AGENTOPS_MAX_TOTAL_STEPS,
    }
    return render(request, "runs/start.html", context, status=status)


def _choice(agent: Agent) -> dict[str, Any]:
    """An agent as the form offers it: what its definition says, without secrets."""
    return {
        "slug": agent.slug,
        "provider": clean(agent.provider),
        "model": clean(agent.model),
        "tools": [clean(str(tool)) for tool in agent.tools],
        "max_steps": agent.max_steps,
    }


def _token(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _address(request: HttpRequest, token: UUID) -> str:
    """The form's own address. Pages are not stored, so going back asks for it again: the address knows the token."""
    asked = request.GET.copy()
    asked["form"] = str(token)
    return f"{request.path}?{asked.urlencode()}"


def _chosen(request: HttpRequest, known: Sequence[Agent]) -> str:
    """The agent that a link names, or the only one that there is."""
    return request.GET.get("agent") or (known[0].slug if len(known) == 1 else "")


def _begin(principal: Principal, project: Project, wanted: dict[str, Any]) -> AgentRun:
    return run_actions.create(
        principal,
        project,
        agent_definitions.find(project, wanted["agent"]),
        wanted["prompt"] if wanted["prompt"].strip() else None,
        title=wanted["title"],
        labels=wanted["labels"],
        max_steps=wanted["max_steps"],
    )
