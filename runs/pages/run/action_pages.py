"""What people do to a run: resume, pause, stop, send, say what came of a call. Each is one call; the page shows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from agentops.http.methods import require_POST
from agentops.projects.access import Action, Principal
from agentops.projects.requests import principal_of
from runs.access import run_for
from runs.actions import run_actions
from runs.actions.unknown_calls import OutcomeChoice
from runs.errors import InvalidInput, InvalidMaxSteps, MessageEmpty, RunRefusal
from runs.lifecycle import questions
from runs.models import AgentRun
from runs.pages.forms import fields
from runs.statuses import RunStatus

KEY = re.compile(r"[0-9a-fA-F-]{1,64}", re.ASCII)


#: Does it to a run, and to what else the address names; tells the reader, and says which run's page to show.
Act = Callable[..., AgentRun]


def _action(refused: str) -> Callable[[Act], Callable[..., HttpResponse]]:
    """The view around an act: who may, and what becomes of a refusal (a banner that begins with `refused`)."""

    def decorated(act: Act) -> Callable[..., HttpResponse]:
        @require_POST
        @wraps(act)
        def view(request: HttpRequest, run_id: UUID, **named: UUID) -> HttpResponse:
            principal = principal_of(request)
            run = run_for(principal, run_id, Action.OPERATE)
            try:
                shown = act(request, principal, run, **named)
            except RunRefusal as refusal:
                if refusal.status not in {409, 422}:
                    raise
                messages.error(request, f"{refused}: {refusal}.")
                shown = run
            return _see(request, shown)

        return view

    return decorated


@_action("Not resumed")
def resume(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    # An empty box says nothing, which is "continue"; spaces are an empty message.
    message = fields.text(request.POST.get("message", "")) or None
    replace = bool(request.POST.get("replace"))
    if replace and message is None:
        raise MessageEmpty("to begin anew, a message is needed to begin with", pointer="/message")
    max_steps = _max_steps(request.POST.get("max_steps", ""))
    done = run_actions.resume(principal, run, message=message, append=not replace, max_steps=max_steps)
    if done.already:
        messages.info(request, "It was resumed already. This is the run that it went on as.")
    else:
        messages.success(request, "Resumed. This is the run that goes on.")
    return done.run


@_action("Not paused")
def pause(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    now = run_actions.pause(principal, run).run
    if now.state is RunStatus.PAUSED:
        messages.success(request, "Paused.")
    else:
        # No more: the run may have paused before this is read. Until then a banner says when it will.
        messages.info(request, "Pause requested.")
    return run


@_action("Not stopped")
def stop(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    now = run_actions.stop(principal, run).run
    if now.state is RunStatus.STOPPED:
        messages.success(request, "Stopped.")
    else:
        messages.info(request, "Stop requested.")
    return run


@_action("Not sent")
def send(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    now = run_actions.send(principal, run, fields.text(request.POST.get("message", "")), key=_key(request)).run
    heard = "when the run is resumed" if now.state is RunStatus.PAUSED else "before its next model call"
    messages.success(request, f"Sent. The agent hears it {heard}.")
    return run


@_action("Not answered")
def answer(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    """What the agent asks. Where somebody was faster, it is a message like any other."""
    waited = questions.waits(run)
    now = run_actions.reply(principal, run, fields.text(request.POST.get("message", "")), key=_key(request)).run
    if waited and now.status_reason == questions.REASON:
        messages.success(request, "Answered. The run goes on with that.")
    else:
        messages.info(request, "It did not ask any more: the agent hears it as a message, before its next model call.")
    return run


@_action("Not said")
def resolve(request: HttpRequest, principal: Principal, run: AgentRun, call_id: UUID) -> AgentRun:
    """Of a call whose outcome is unknown."""
    word = request.POST.get("choice", "")
    if word not in tuple(OutcomeChoice):
        raise InvalidInput(f"the choice is one of {', '.join(OutcomeChoice)}", pointer="/choice")
    choice = OutcomeChoice(word)
    # An empty box says nothing more than the choice does.
    text = None if choice is OutcomeChoice.RETRY else fields.text(request.POST.get("text", "")).strip() or None
    done = run_actions.resolve_call(principal, run, call_id, choice, text=text)
    told = "Said. The call runs again." if choice is OutcomeChoice.RETRY else "Said. The run goes on with that."
    messages.success(request, told if done.new else "You have said so already.")
    return run


def _see(request: HttpRequest, run: AgentRun) -> HttpResponse:
    """To the page of a run, by GET."""
    url = resolve_url("runs:detail", run.pk)
    if HtmxDetails(request):
        return HttpResponseClientRedirect(url)
    return HttpResponse(status=303, headers={"Location": url})


def _max_steps(text: str) -> int | None:
    try:
        return fields.whole(text)
    except ValueError:
        problem = f"max_steps must be a whole number from 1 to {settings.AGENTOPS_MAX_TOTAL_STEPS}"
        raise InvalidMaxSteps(problem, pointer="/max_steps") from None


def _key(request: HttpRequest) -> str | None:
    """Of the form, so that a double click says it once."""
    key = request.POST.get("key")
    if not key:
        return None
    if not KEY.fullmatch(key):
        raise InvalidInput("the form's key is none: load the page again", pointer="/key")
    return f"page:{key}"
