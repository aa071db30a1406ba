"""The approval rules of a project: which tool calls of all its agents run, wait for a person, or are denied.

Only people can change them, on this page; API keys cannot.
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, project_for
from agentops.accounts.models import Project
from agentops.accounts.settings_pages.page_parts import see_other, sentence
from agentops.base.http.methods import require_http_methods
from agentops.base.redaction.json_values import MaskedSecrets, masked
from runs.actions import approvals
from runs.errors import InvalidPolicies
from runs.pages.agents.definition_fields import APPROVALS
from runs.pages.content.differences import TextDifference, difference
from runs.pages.forms import form_fields
from runs.pages.forms.rule_rows import RuleRows
from runs.pages.page_parts import enter_project, parse_seen, project_context


@require_http_methods(["GET", "HEAD", "POST"])
def rules(request: HttpRequest, project: str) -> HttpResponse:
    """Show the rules as a form, or replace them. Status 422 for an invalid form, 409 after a concurrent change."""
    principal, entry = enter_project(request, project, Action.MANAGE)
    stored = _stored(entry.project)
    if request.method != "POST":
        return _render(request, entry, RuleRows(APPROVALS, stored), seen=masked(stored))
    seen, do = parse_seen(request, list, "rules"), request.POST.get("do", "save")
    rows = RuleRows(APPROVALS, stored, request.POST, secrets=MaskedSecrets(stored), adds=do == "add")
    if do == "add":
        return _render(request, entry, rows, seen=seen)
    for problem in approvals.problems_of(rows.rules):
        rows.add_problem(str(problem.data["pointer"]).split("/")[1:], sentence(problem))
    if rows.total_error_count():
        return _render(request, entry, rows, seen=seen, status=422)
    if do == "preview":
        return _render(request, entry, rows, seen=seen, preview=[_difference(stored, rows.rules)])
    try:
        if masked(stored) != seen and rows.rules != stored:
            raise approvals.RulesChanged("the approval rules have changed")
        approvals.set_rules(
            principal, entry.project, rows.rules, expected_rules=None if _problem(entry.project) else stored
        )
    except approvals.RulesChanged:
        now = _stored(project_for(principal, project, Action.MANAGE))
        differences = {"conflict": [_difference(seen, now)], "preview": [_difference(now, rows.rules)]}
        return _render(request, entry, rows, seen=masked(now), status=409, **differences)
    messages.success(request, "Rules saved. They take effect within seconds, also for runs that exist.")
    return see_other("runs:approval-rules", entry.project.slug)


def _stored(project: Project) -> list[Any]:
    """Return the rules; empty if the stored rules are invalid, which stops all runs until the rules are replaced."""
    return [] if _problem(project) else approvals.rules_of(project)


def _problem(project: Project) -> str:
    """Return why the stored rules are invalid; empty if they are valid."""
    try:
        approvals.rules_of(project)
    except InvalidPolicies as error:
        return str(error)
    return ""


def _difference(before: list[Any], after: list[Any]) -> TextDifference:
    return difference("Rules", form_fields.json_of(masked(before)), form_fields.json_of(masked(after)))


def _render(
    request: HttpRequest, entry: EnteredProject, rows: RuleRows, *, seen: list[Any], status: int = 200, **context: Any
) -> HttpResponse:
    context |= {
        **project_context(entry, "settings"),
        "rows": rows,
        "seen": json.dumps(seen),
        "unreadable": _problem(entry.project),
    }
    return render(request, "runs/settings/approval_rules.html", context, status=status)
