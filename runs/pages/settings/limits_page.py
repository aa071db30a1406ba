"""The daily budgets of a project with today's usage, and its retention with a preview."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.memberships import MAX_RETENTION_DAYS, change_project
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other, sentence
from agentops.base.http.methods import require_POST, require_safe
from runs.actions import project_changes
from runs.agents.budgets import InvalidBudget, day_limits
from runs.pages.forms.fields import NUMBER, OneLineField
from runs.pages.page_parts import enter_project, project_context
from runs.queries.project_sums import estimate_deletions


class BudgetField(OneLineField):
    """A daily budget, such as `tokens_per_day`. Its value is a number of tokens, or an amount of money as text."""

    def __init__(self, name: str, label: str, help_text: str) -> None:
        super().__init__(label, help_text, {"inputmode": "decimal", "maxlength": 40})
        self.name = name

    def clean(self, value: Any) -> int | str | None:
        """Return the value; None without a limit."""
        text = super().clean(value)
        # Money with decimals stays a text, to keep its digits.
        amount = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text or None
        try:
            day_limits({"budgets": {self.name: amount} if text else {}})
        except InvalidBudget as refusal:
            raise forms.ValidationError(sentence(refusal)) from None
        return amount


class BudgetsForm(forms.Form):
    """The daily budgets."""

    tokens_per_day = BudgetField("tokens_per_day", "Tokens per day", "Sent and received. Empty: no limit.")
    cost_usd_per_day = BudgetField(
        "cost_usd_per_day", "US dollars per day", "Model calls without a price do not count. Empty: no limit."
    )


class RetentionForm(forms.Form):
    """The retention."""

    days = OneLineField(
        "Days after the end of a run",
        f"From 1 to {MAX_RETENTION_DAYS:,}. Empty: keep runs forever.",
        NUMBER | {"maxlength": 5},
    )

    def clean_days(self) -> int | None:
        """Return the number of days; None if it is empty."""
        text = self.cleaned_data["days"]
        if not text:
            return None
        if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or not 1 <= int(text) <= MAX_RETENTION_DAYS:
            error = f"Enter a number of days from 1 to {MAX_RETENTION_DAYS}, not {text[:20]!r}."
            raise forms.ValidationError(error)
        return int(text)


@require_safe
def budgets(request: HttpRequest, project: str) -> HttpResponse:
    """Show the daily budgets."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    return _budgets(request, entry, BudgetsForm(initial=_stored(entry.project)))


@require_POST
def set_budgets(request: HttpRequest, project: str) -> HttpResponse:
    """Replace the daily budgets. Status 422 with errors at their fields."""
    principal, entry = enter_project(request, project, Action.MANAGE)
    form = BudgetsForm(request.POST)
    if not form.is_valid():
        return _budgets(request, entry, form, status=422)
    project_changes.change_budgets(entry.project, form.cleaned_data, by=principal)
    messages.success(request, "Budgets saved. They take effect within seconds.")
    return see_other("runs:budgets", entry.project.slug)


@require_safe
def retention(request: HttpRequest, project: str) -> HttpResponse:
    """Show the retention. With `days`, empty for no limit, also show what it would delete."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    if "days" not in request.GET:
        days = entry.project.retention_days
        return _retention(request, entry, RetentionForm(initial={"days": days}), days)
    form = RetentionForm(request.GET)
    if not form.is_valid():
        return _retention(request, entry, form, None, status=422)
    return _retention(request, entry, form, form.cleaned_data["days"], is_preview=True)


@require_POST
def set_retention(request: HttpRequest, project: str) -> HttpResponse:
    """Set the retention to `days`; empty: no limit. Status 422 with the error."""
    principal, entry = enter_project(request, project, Action.MANAGE)
    form = RetentionForm(request.POST)
    if not form.is_valid():
        return _retention(request, entry, form, None, status=422)
    days = form.cleaned_data["days"]
    change_project(entry.project, retention_days=days, actor=principal)
    effect = "kept forever" if days is None else f"deleted {days} day{'' if days == 1 else 's'} after they ended"
    messages.success(request, f"Retention saved. Runs are {effect}.")
    return see_other("runs:retention", entry.project.slug)


def _budgets(request: HttpRequest, entry: EnteredProject, form: BudgetsForm, *, status: int = 200) -> HttpResponse:
    context = {
        **project_context(entry, "settings"),
        "form": form,
        "unreadable": _budgets_problem(entry.project),
        "command": f"agentops budget {entry.project.slug} --tokens-per-day 2000000 --cost-usd-per-day 20",
    }
    return render(request, "runs/settings/budgets.html", context, status=status)


def _retention(
    request: HttpRequest,
    entry: EnteredProject,
    form: RetentionForm,
    days: int | None,
    *,
    is_preview: bool = False,
    status: int = 200,
) -> HttpResponse:
    """Show the retention, and what a limit of `days` would delete."""
    context: dict[str, Any] = {
        **project_context(entry, "settings"),
        "days": days,
        "form": form,
        "is_preview": is_preview,
        "estimate": estimate_deletions(entry.project, days) if days is not None else None,
        "command": f"agentops retention --dry-run --project {entry.project.slug} --older-than {days or 90}",
    }
    return render(request, "runs/settings/retention.html", context, status=status)


def _stored(project: Project) -> dict[str, str]:
    """Return the stored budgets as texts; empty if they are invalid."""
    try:
        return {name: str(value) for name, value in project_changes.budgets_of(project).items()}
    except InvalidBudget:
        return {}


def _budgets_problem(project: Project) -> str:
    """Return why the stored budgets are invalid; empty if they are valid."""
    try:
        project_changes.budgets_of(project)
    except InvalidBudget as refusal:
        return str(refusal)
    return ""
