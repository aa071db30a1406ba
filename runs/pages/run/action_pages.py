"""The views behind the buttons of the page of a run or flow run: resume, pause, stop, send and others.

Each calls one action.
"""

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

from agentops.accounts.access import Action, Principal
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from agentops.base.refusals import Conflict, Invalid, Refusal
from runs.actions import flow_commands, flow_run_actions, run_actions
from runs.actions.unknown_calls import OutcomeChoice
from runs.errors import InvalidMaxSteps, MessageEmpty
from runs.external import recorded_ends
from runs.lifecycle import questions
from runs.models import AgentRun, FlowRun
from runs.pages.forms import fields
from runs.pages.run.any_run import AnyRun, address_of, run_of
from runs.queries.overview.needs import NeedKind
from runs.statuses import RunStatus

KEY = re.compile(r"[0-9a-fA-F-]{1,64}", re.ASCII)


#: Performs an action, adds a message for the user, and returns the run whose page to show next.
Act = Callable[..., AnyRun]


def _action(failure: str) -> Callable[[Act], Callable[..., HttpResponse]]:
    """Make a POST view of an action: check the permission, and show refusals in a banner that begins with `failure`."""

    def decorate(act: Act) -> Callable[..., HttpResponse]:
        @require_POST
        @wraps(act)
        def view(request: HttpRequest, **url: UUID) -> HttpResponse:
            principal = principal_of(request)
            run = run_of(principal, url, Action.OPERATE)
            try:
                next_run = act(request, principal, run, **url)
            except (Conflict, Invalid) as refusal:
                messages.error(request, f"{failure}: {_reason(refusal)}.")
                next_run = run
            return redirect_to(request, next_run)

        return view

    return decorate


def _reason(refusal: Refusal) -> str:
    """Return why an action was refused, without the form's key, which users do not know."""
    if refusal.code == "command_key_conflict":
        return "this form was sent before, with another text. Reload the page to send a further one"
    return str(refusal)


@_action("Not resumed")
def resume(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    """Resume the run and return the run that continues it."""
    # An empty field means "continue"; only spaces are an empty message.
    message = fields.text(request.POST.get("message", "")) or None
    replace = bool(request.POST.get("replace"))
    if replace and message is None:
        raise MessageEmpty("starting over requires a message", pointer="/message")
    max_steps = _max_steps(request.POST.get("max_steps", ""))
    result = run_actions.resume(principal, run, message=message, append=not replace, max_steps=max_steps)
    if result.is_existing:
        messages.info(request, "Already resumed. Showing the run that continues it.")
    else:
        messages.success(request, "Run resumed. Showing the run that continues it.")
    return result.run


@_action("Not paused")
def pause(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    """Pause the run, or request it from its worker."""
    updated = run_actions.pause(principal, run).run
    if updated.state is RunStatus.PAUSED:
        messages.success(request, "Run paused.")
    else:
        # Without details, because the run may have paused before the page is displayed. A banner explains when it
        # pauses.
        messages.info(request, "Pause requested.")
    return run


@_action("Not stopped")
def stop(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    """Stop the run, or request it from its worker."""
    updated = recorded_ends.stop(principal, run).run
    if updated.state is RunStatus.STOPPED:
        messages.success(request, "Recording stopped." if run.is_recorded else "Run stopped.")
    else:
        messages.info(request, "Stop requested.")
    return run


@_action("Not sent")
def send(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    """Send a message to the agent."""
    message, key = fields.text(request.POST.get("message", "")), _key(request, principal)
    updated = run_actions.send(principal, run, message, key=key).run
    when = "after the run is resumed" if updated.state is RunStatus.PAUSED else "before its next model call"
    messages.success(request, f"Message sent. The agent receives it {when}.")
    return run


@_action("Not answered")
def answer(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    """Answer the agent's question. If it has been answered already, the text is sent as a message."""
    waited = questions.is_waiting_for_answer(run)
    message, key = fields.text(request.POST.get("message", "")), _key(request, principal)
    updated = run_actions.reply(principal, run, message, key=key).run
    if waited and updated.status_reason == questions.REASON:
        messages.success(request, "Answer sent. The run continues.")
    else:
        messages.info(
            request,
            "The question was already answered. The agent receives your answer as a message.",
        )
    return run


@_action("Outcome not saved")
def resolve(request: HttpRequest, principal: Principal, run: AgentRun, call_id: UUID) -> AgentRun:
    """Resolve the outcome of a tool call whose outcome is unknown."""
    value = request.POST.get("choice", "")
    if value not in tuple(OutcomeChoice):
        raise Invalid(f"choice must be one of {', '.join(OutcomeChoice)}", pointer="/choice")
    choice = OutcomeChoice(value)
    text = None if choice is OutcomeChoice.RETRY else fields.text(request.POST.get("text", "")).strip() or None
    result = run_actions.resolve_call(principal, run, call_id, choice, text=text)
    effect = "The tool call runs again." if choice is OutcomeChoice.RETRY else "The run continues."
    messages.success(request, f"Outcome recorded. {effect}" if result.is_new else "Outcome already recorded.")
    return run


# --- Flow runs ---


@_action("Not resumed")
def resume_flow_run(request: HttpRequest, principal: Principal, flow_run: FlowRun) -> FlowRun:
    """Resume a paused flow run, with a message or without one."""
    flow_run_actions.resume(principal, flow_run, message=fields.text(request.POST.get("message", "")) or None)
    messages.success(request, "Flow run resumed.")
    return flow_run


@_action("Not paused")
def pause_flow_run(request: HttpRequest, principal: Principal, flow_run: FlowRun) -> FlowRun:
    """Pause a flow run and the runs of its nodes."""
    flow_run_actions.pause(principal, flow_run)
    messages.success(request, "Flow run paused. Runs of its nodes pause after their current steps.")
    return flow_run


@_action("Not stopped")
def stop_flow_run(request: HttpRequest, principal: Principal, flow_run: FlowRun) -> FlowRun:
    """Stop a flow run and the runs of its nodes."""
    flow_run_actions.stop(principal, flow_run)
    messages.success(request, "Flow run stopped.")
    return flow_run


@_action("Not sent")
def send_to_flow_run(request: HttpRequest, principal: Principal, flow_run: FlowRun) -> FlowRun:
    """Send a message to the run of a node."""
    message = fields.text(request.POST.get("message", ""))
    body = {"type": "send", "runId": request.POST.get("run", ""), "message": message}
    flow_commands.command(principal, flow_run, body)
    messages.success(request, "Message sent.")
    return flow_run


# --- After an action ---

#: Pages with forms other than the page of the run: value of the field `next` → name and arguments of the URL. An inbox
#: that shows one kind of entries appends the kind after a colon.
_PAGES: dict[str, Callable[[AnyRun], tuple[str, *tuple[object, ...]]]] = {
    "all": lambda _: ("runs:all-approvals",),
    "inbox": lambda run: ("runs:approvals", run.project.slug),
    "overview": lambda run: ("runs:overview", run.project.slug),
    "tree": lambda run: ("runs:tree", run.pk),
}


def redirect_to(request: HttpRequest, run: AnyRun) -> HttpResponse:
    """Redirect to the page of a run or flow run, or to the page that the form was on, with GET."""
    page, _, kind = request.POST.get("next", "").partition(":")
    page_of = _PAGES.get(page)
    url = resolve_url(*page_of(run)) if page_of is not None else address_of(run)
    if page_of is not None and kind in tuple(NeedKind):
        url = f"{url}?kind={kind}"
    if HtmxDetails(request):
        return HttpResponseClientRedirect(url)
    return HttpResponse(status=303, headers={"Location": url})


def _max_steps(text: str) -> int | None:
    try:
        return fields.integer(text)
    except ValueError:
        problem = f"max_steps must be a whole number from 1 to {settings.AGENTOPS_MAX_TOTAL_STEPS}"
        raise InvalidMaxSteps(problem, pointer="/max_steps") from None


def _key(request: HttpRequest, principal: Principal) -> str | None:
    """Return the user's idempotency key of the form: a double click sends a message once.

    The forms of an inbox have the same key for all users, each of whom may answer.
    """
    key = request.POST.get("key")
    if not key:
        return None
    if not KEY.fullmatch(key):
        raise Invalid("this form has expired. Reload the page", pointer="/key")
    return f"page:{principal.user_id}:{key}"
