"""The approval rules of a project: which tool calls of all its agents run, wait for a person, or are denied.

Only people can change them, on this page; API keys cannot.
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url

from agentops.accounts.access import Action, EnteredProject, enter, project_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base.http import strict_json
from agentops.base.http.methods import require_http_methods
from agentops.base.redaction.masked_secrets import MaskedSecrets, masked
from agentops.base.refusals import InvalidQuery
from runs.actions import approvals
from runs.errors import InvalidPolicies
from runs.pages.agents.agents_page import page_context
from runs.pages.agents.definition_fields import APPROVALS
from runs.pages.compare.differences import TextDifference, difference
from runs.pages.forms import form_fields
from runs.pages.forms.rule_rows import RuleRows, read_rows, shown_rows

TITLE = "Rules"


@require_http_methods(["GET", "HEAD", "POST"])
def rules(request: HttpRequest, project: str) -> HttpResponse:
    """Show the rules as a form, or replace them. Status 422 for an invalid form, 409 after a concurrent change."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    stored = _stored(entry.project)
    if request.method != "POST":
        return _render(request, entry, shown_rows(APPROVALS, stored), seen=masked(stored))
    seen, do = _seen(request), request.POST.get("do", "save")
    rows = read_rows(APPROVALS, request.POST, stored, MaskedSecrets(stored))
    if do == "add":
        rows.add_row()
        return _render(request, entry, rows, seen=seen)
    _add_problems(rows)
    if rows.error_count:
        return _render(request, entry, rows, seen=seen, status=422)
    if do == "preview":
        return _render(request, entry, rows, seen=seen, preview=_difference(stored, rows.items))
    try:
        if masked(stored) != seen and rows.items != stored:
            raise approvals.RulesChanged("the approval rules have changed")
        approvals.set_rules(principal, entry.project, rows.items, changes=None if _fault(entry.project) else stored)
    except approvals.RulesChanged:
        now = _stored(project_for(principal, project, Action.MANAGE))
        shown = {"conflict": _difference(seen, now), "preview": _difference(now, rows.items)}
        return _render(request, entry, rows, seen=masked(now), status=409, **shown)
    messages.success(request, "Rules saved. They take effect within seconds, also for runs that exist.")
    return HttpResponse(status=303, headers={"Location": resolve_url("runs:approval-rules", entry.project.slug)})


def _stored(project: Project) -> list[Any]:
    """Return the rules; empty if the stored rules are invalid, which stops all runs until the rules are replaced."""
    return [] if _fault(project) else approvals.rules_of(project)


def _fault(project: Project) -> str:
    """Return why the stored rules are invalid; empty if they are valid."""
    try:
        approvals.rules_of(project)
    except InvalidPolicies as error:
        return str(error)
    return ""


def _seen(request: HttpRequest) -> list[Any]:
    """Return the masked rules with which the form was rendered."""
    try:
        seen = strict_json.parse(request.POST.get("seen", ""))
    except ValueError:
        seen = None
    if not isinstance(seen, list):
        raise InvalidQuery("seen must be the rules that the form was made of: reload the page")
    return seen


def _add_problems(rows: RuleRows) -> None:
    """Add each error to its field."""
    for problem in approvals.problems_of(rows.items):
        row, field_name = rows.row_at(str(problem.data["pointer"]).split("/")[1:])
        text = f"{str(problem)[:1].upper()}{str(problem)[1:]}."
        if row is None:
            rows.errors.append(text)
        else:
            row.add_error(field_name, text)


def _difference(before: list[Any], after: list[Any]) -> TextDifference:
    return difference(TITLE, form_fields.json_of(masked(before)), form_fields.json_of(masked(after)))


def _render(
    request: HttpRequest,
    entry: EnteredProject,
    rows: RuleRows,
    *,
    seen: list[Any],
    status: int = 200,
    **context: Any,
) -> HttpResponse:
    context |= {
        **page_context(entry, "settings"),
        "rows": rows,
        "seen": json.dumps(seen),
        "unreadable": _fault(entry.project),
    }
    return render(request, "runs/approval_rules.html", context, status=status)
