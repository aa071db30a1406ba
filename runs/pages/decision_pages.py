"""The views that approve or deny a tool call: from the inbox and the page of a run, and by the link of an e-mail."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from agentops.accounts import mailing
from agentops.accounts.access import Action, Principal, may, principal_for_user
from agentops.accounts.models import Door, Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http import strict_json
from agentops.base.http.methods import require_http_methods, require_POST
from agentops.base.redaction import project_scope
from agentops.base.refusals import Conflict, Invalid
from runs.access import run_for
from runs.actions import approvals
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, Approval
from runs.pages.forms import fields
from runs.pages.run.action_pages import redirect_to
from runs.pages.run.banner import shown_approval

APPROVE, DENY = "approve", "deny"


@require_POST
def decide(request: HttpRequest, run_id: UUID, call_id: UUID) -> HttpResponse:
    """Approve or deny a call, and redirect to the page that contained the form."""
    principal = principal_of(request)
    run = run_for(principal, run_id, Action.APPROVE)
    rejected = _decide(request, principal, run, call_id)
    approval = _approvals().filter(run=run, call=call_id).first() if rejected else None
    if approval is not None:
        return _render(request, principal, approval, rejected, project=run.project)
    return redirect_to(request, run)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def by_link(request: HttpRequest, token: str) -> HttpResponse:
    """Show the call of an e-mail's link, or decide it by POST. GET changes nothing.

    The link authenticates its recipient without a login, but the recipient must still have permission to approve.
    """
    link = _read_link(request, token)
    if link is None:
        return render(request, "runs/approvals/approval_link.html", {"item": None}, status=404)
    approval, principal = link
    rejected = ""
    if request.method == "POST":
        rejected = _decide(request, principal, approval.run, approval.call_id)
        if not rejected:
            return see_other(request.path)
    return _render(request, principal, approval, rejected)


def _render(
    request: HttpRequest, principal: Principal, approval: Approval, rejected: str, *, project: Project | None = None
) -> HttpResponse:
    """Show an approval on a page of its own. `rejected` are the arguments that the user has to correct, if any."""
    context = {
        "project": project,
        "item": shown_approval(approval, may_decide=approval.state == Approval.State.PENDING),
        "actor": principal.actor,
        "typed": rejected,
        "next": request.POST.get("next", ""),
    }
    return render(request, "runs/approvals/approval_link.html", context, status=422 if rejected else 200)


def _read_link(request: HttpRequest, token: str) -> tuple[Approval, Principal] | None:
    """Return the approval and the recipient of a link; None if it is invalid, or the recipient may not approve."""
    values = mailing.read_approval_link(token)
    if values is None:
        return None
    notification_id, user = values
    approval = _approvals().filter(notification_id=notification_id).first()
    if approval is None:
        return None
    principal = principal_for_user(user, ip=request.META.get("REMOTE_ADDR"), door=Door.LINK)
    if not may(principal, Action.APPROVE, approval.project_id):
        return None
    project_scope.add(approval.project_id)
    return approval, principal


def _approvals() -> QuerySet[Approval]:
    return Approval.objects.select_related("run__project", "call")


def _decide(request: HttpRequest, principal: Principal, run: AgentRun, call_id: UUID) -> str:
    """Apply the decision of the form, and add a message for the user. Return the typed arguments if they are wrong."""
    try:
        decision = _decision(request)
        result = approvals.decide(principal, run, call_id, decision)
    except (Conflict, Invalid) as refusal:
        messages.error(request, f"Not decided: {refusal}.")
        return request.POST.get("arguments", "") if refusal.data.get("pointer") == "/arguments" else ""
    tool, state = result.approval.tool_name, result.approval.state
    if result.is_new:
        messages.success(request, f"{tool} {state}. The run continues.")
    else:
        messages.info(request, f"You have already {state} {tool}.")
    return ""


def _decision(request: HttpRequest) -> Decision:
    """Return the decision of the form. Raises Invalid."""
    choice = request.POST.get("decision")
    if choice == DENY:
        return Decision(approves=False, message=fields.text(request.POST.get("message", "")).strip())
    if choice != APPROVE:
        raise Invalid(f"decision must be {APPROVE} or {DENY}", pointer="/decision")
    return Decision(approves=True, arguments=_arguments(request), always=bool(request.POST.get("always")))


def _arguments(request: HttpRequest) -> dict[str, object] | None:
    """Return the edited arguments; None if the form has none. Raises Invalid."""
    text = request.POST.get("arguments")
    if text is None:
        return None
    try:
        value = strict_json.parse(text.replace("\r\n", "\n"), strict_json.BODY)
    except (strict_json.NotJson, RecursionError) as error:
        raise Invalid(f"the arguments are not JSON: {error}", pointer="/arguments") from None
    if not isinstance(value, dict):
        raise Invalid("the arguments must be a JSON object", pointer="/arguments")
    return value
