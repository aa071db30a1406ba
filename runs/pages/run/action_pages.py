"""The views behind the buttons of the page of a run or flow run: resume, pause, stop, send, dismiss and others.

Each view calls one action.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from agentops.accounts.access import Action, Principal, project_for
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http import strict_json
from agentops.base.http.methods import require_POST
from agentops.base.refusals import Conflict, Invalid, InvalidQuery, Refusal
from runs.actions import dismissals, flow_commands, flow_run_actions, run_actions
from runs.actions.unknown_calls import OutcomeChoice
from runs.errors import InvalidMaxSteps, MessageEmpty
from runs.external import recorded_ends
from runs.lifecycle import questions
from runs.models import AgentRun, FlowRun
from runs.pages.forms import fields
from runs.pages.run.any_run import AnyRun, address_of, run_of
from runs.queries.needs import NeedKind
from runs.statuses import RunStatus

#: The idempotency key of a form: a UUID.
KEY = re.compile(r"[0-9a-fA-F-]{1,64}", re.ASCII)
#: Performs an action, adds a message for the user, and returns the run whose page to show next.
Act = Callable[..., AnyRun]


def _action(failure: str) -> Callable[[Act], Callable[..., HttpResponse]]:
    """Make a POST view of an action. It checks the permission, and shows a refusal after the text `failure`."""

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
        # No details: the run may have paused before the page is displayed. If not, a banner says when it pauses.
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
    message, key = fields.text(request.POST.get("message", "")), _idempotency_key(request, principal)
    updated = run_actions.send(principal, run, message, key=key).run
    when = "when its code asks for messages" if run.is_durable else "before its next model call"
    when = "after the run is resumed" if updated.state is RunStatus.PAUSED else when
    messages.success(request, f"Message sent. The agent receives it {when}.")
    return run


@_action("Not answered")
def answer(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    """Answer the agent's question. If it has been answered already, the text is sent as a message."""
    was_waiting = questions.is_waiting_for_answer(run)
    message, key = fields.text(request.POST.get("message", "")), _idempotency_key(request, principal)
    updated = run_actions.reply(principal, run, message, key=key).run
    if was_waiting and updated.status_reason == questions.REASON:
        messages.success(request, "Answer sent. The run continues.")
    else:
        messages.info(request, "The question was already answered. The agent receives your answer as a message.")
    return run


@_action("Signal not sent")
def signal(request: HttpRequest, principal: Principal, run: AgentRun) -> AgentRun:
    """Send the signal that a remote run waits for, with a JSON value."""
    name, text = fields.text(request.POST.get("name", "")), fields.text(request.POST.get("payload", "")).strip()
    try:
        value = strict_json.parse(text) if text else None
    except strict_json.NotJson as error:
        raise Invalid(f"the value is not valid JSON: {error}", pointer="/payload") from None
    run_actions.signal(principal, run, name, value, key=_idempotency_key(request, principal))
    messages.success(request, "Signal sent. The run receives it when it waits for it.")
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

#: Pages with these forms other than the page of the run: value of the field `next` → name and arguments of the URL.
#: An inbox that shows one kind of entries appends the kind, after a colon.
_PAGES: dict[str, Callable[[AnyRun], tuple[str, *tuple[object, ...]]]] = {
    "all": lambda _: ("runs:all-approvals",),
    "inbox": lambda run: ("runs:approvals", run.project.slug),
    "overview": lambda run: ("runs:overview", run.project.slug),
    "tree": lambda run: ("runs:tree", run.pk),
}


def redirect_to(request: HttpRequest, run: AnyRun) -> HttpResponse:
    """Redirect to the page that contained the form (see `_PAGES`), by default the page of the run or flow run."""
    page, _, kind = request.POST.get("next", "").partition(":")
    page_of = _PAGES.get(page)
    url = resolve_url(*page_of(run)) if page_of is not None else address_of(run)
    if page_of is not None and kind in tuple(NeedKind):
        url = f"{url}?kind={kind}"
    return HttpResponseClientRedirect(url) if HtmxDetails(request) else see_other(url)


def _max_steps(text: str) -> int | None:
    """Return the step budget of a form; None if it is empty. Raises InvalidMaxSteps."""
    try:
        return fields.integer(text)
    except ValueError:
        problem = f"max_steps must be a whole number from 1 to {settings.AGENTOPS_MAX_TOTAL_STEPS}"
        raise InvalidMaxSteps(problem, pointer="/max_steps") from None


def _idempotency_key(request: HttpRequest, principal: Principal) -> str | None:
    """Return the idempotency key of the form, so that a double click sends a message once; None without a key.

    It contains the user's ID: the forms of an inbox have the same key for all users, and each of them may answer.
    """
    key = request.POST.get("key")
    if not key:
        return None
    if not KEY.fullmatch(key):
        raise Invalid("this form has expired. Reload the page", pointer="/key")
    return f"page:{principal.user_id}:{key}"


@require_POST
def dismiss(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Dismiss a failed run, or an external run that is silent or waits: it leaves the inbox.

    Redirect to the page that contained the form.
    """
    principal = principal_of(request)
    run = run_of(principal, url, Action.OPERATE)
    noun = "flow run" if isinstance(run, FlowRun) else "run"
    try:
        if isinstance(run, FlowRun):
            is_new = dismissals.dismiss_flow_run(principal, run)
        else:
            is_new = dismissals.dismiss(principal, run)
    except dismissals.NotDismissable as refusal:
        messages.error(request, f"Not dismissed: {refusal}.")
    else:
        messages.success(request, f"Dismissed. The {noun} itself is unchanged." if is_new else "Already dismissed.")
    return redirect_to(request, run)


@require_POST
def dismiss_failed(request: HttpRequest, project: str) -> HttpResponse:
    """Dismiss the runs of a project that had failed by the time `upto`, at which the page was rendered."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.OPERATE)
    try:
        upto = datetime.fromisoformat(request.POST.get("upto", ""))
        if upto.tzinfo is None:
            raise ValueError
        upto = upto.astimezone(UTC)
    except (ValueError, OverflowError):  # the time zone may move it out of the calendar
        raise InvalidQuery("upto must be a time in ISO 8601 with a zone") from None
    count = dismissals.dismiss_failed(principal, owner, upto)
    messages.success(request, f"Dismissed {count} failed run{'' if count == 1 else 's'}.")
    return see_other("runs:approvals", owner.slug)
