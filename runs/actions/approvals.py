"""List and decide approvals for users and programs, with an audit entry for each decision.

The caller has checked the permission.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction

from agentops.accounts.audit import Actor, AuditAction, record
from agentops.accounts.models import Project
from agentops.base.refusals import Conflict
from runs.actions.run_actions import RunAuditAction
from runs.agents import call_rules, policies
from runs.agents.call_rules import InvalidPolicy
from runs.errors import InvalidPolicies
from runs.lifecycle import approval_decisions
from runs.lifecycle.approval_decisions import Decision, DecisionResult
from runs.models import AgentRun, Approval


class RulesChanged(Conflict):
    """The approval rules of the project were changed by another request."""

    code = "rules_changed"


def decide(actor: Actor, run: AgentRun, call_id: UUID, decision: Decision) -> DecisionResult:
    """Approve or deny the call that the run waits for: see runs.lifecycle.approval_decisions."""
    name = actor if isinstance(actor, str) else actor.actor
    with transaction.atomic():
        result = approval_decisions.decide(run.pk, call_id, decision, by=name)
        if result.is_new:
            approval = result.approval
            after = {
                "call": str(call_id),
                "tool_name": approval.tool_name,
                "state": approval.state,
                "edited": sorted(approval.changes or {}),
                "always": approval.always,
            }
            before = {"state": Approval.State.PENDING.value}
            record(actor, RunAuditAction.APPROVAL_DECIDED, project=run.project, obj=run, before=before, after=after)
    return result


def rules_of(project: Project) -> list[dict[str, Any]]:
    """Return the approval rules of a project as stored. Raises `InvalidPolicies` if they are unreadable."""
    _check(project.settings)
    return list(project.settings.get("approvals", [])) if isinstance(project.settings, dict) else []


def problems_of(rules: list[Any]) -> list[InvalidPolicies]:
    """Return all problems of a project's approval rules, each with the pointer of the invalid value."""
    return [_refusal(fault) for fault in policies.faults("approvals", rules)]


def set_rules(actor: Actor, project: Project, rules: list[Any], *, expected_rules: list[Any] | None = None) -> None:
    """Replace the approval rules of a project. `expected_rules`: those that the caller has read; None skips the check.

    Writes nothing and raises `InvalidPolicies` or `RulesChanged`. Workers read the rules when they claim a run, so a
    change takes effect within a slice.
    """
    _check({"approvals": rules})
    with transaction.atomic():
        locked = Project.objects.locked(project)
        settings = locked.settings if isinstance(locked.settings, dict) else {}
        before = settings.get("approvals")
        if (before or []) != rules:
            if expected_rules not in (None, before or []):
                raise RulesChanged("the approval rules of the project have changed")
            locked.settings = {**settings, "approvals": rules}
            locked.save(update_fields=["settings"])
            was, now = {"approvals": before}, {"approvals": rules}
            record(actor, AuditAction.PROJECT_CHANGED, project=locked, obj=locked, before=was, after=now)


def _check(settings: object) -> None:
    """Raise `InvalidPolicies` if the approval rules in a project's settings are invalid."""
    try:
        call_rules.of_project(settings)
    except InvalidPolicy as error:
        raise _refusal(error) from None


def _refusal(error: InvalidPolicy) -> InvalidPolicies:
    pointer = "/".join(map(str, error.path[1:]))
    return InvalidPolicies(str(error), pointer=f"/{pointer}" if pointer else "")
