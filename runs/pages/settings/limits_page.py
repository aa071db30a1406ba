"""The daily budgets of a project with today's usage, and its retention with a preview."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.errors import InvalidRetention
from agentops.accounts.memberships import MAX_RETENTION_DAYS, change_project
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST, require_safe
from runs.actions import day_budgets
from runs.agents.budgets import DAY_BUDGETS, InvalidBudget, day_limits
from runs.pages.agents.agents_page import page_context
from runs.pages.forms import fields
from runs.queries.retention_estimate import estimate

#: Budget → label and help of its field.
LABELS = {
    "tokens_per_day": ("Tokens per day", "Sent and received. Empty: no limit."),
    "cost_usd_per_day": ("US dollars per day", "Model calls without a price do not count. Empty: no limit."),
}


@require_safe
def budgets(request: HttpRequest, project: str) -> HttpResponse:
    """Show the daily budgets."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    return _budgets(request, entry, _stored(entry.project))


@require_POST
def set_budgets(request: HttpRequest, project: str) -> HttpResponse:
    """Replace the daily budgets. Status 422 with errors at their fields."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    texts = {str(name): fields.line(request.POST.get(name, ""))[:40] for name in DAY_BUDGETS}
    values = {name: _amount(text) for name, text in texts.items()}
    errors = {name: error for name, value in values.items() if (error := _error_of(name, value))}
    if errors:
        return _budgets(request, entry, texts, errors=errors, status=422)
    day_budgets.change(entry.project, values, by=principal)
    messages.success(request, "Budgets saved. They take effect within seconds.")
    return _see("runs:budgets", entry.project)


@require_safe
def retention(request: HttpRequest, project: str) -> HttpResponse:
    """Show the retention. With `days`, empty for no limit, also show what it would delete."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    if "days" not in request.GET:
        return _retention(request, entry, entry.project.retention_days)
    try:
        days = _days(request.GET["days"])
    except InvalidRetention as refusal:
        return _retention(request, entry, None, text=request.GET["days"], error=f"{refusal}.", status=422)
    return _retention(request, entry, days, is_preview=True)


@require_POST
def set_retention(request: HttpRequest, project: str) -> HttpResponse:
    """Set the retention to `days`; empty: no limit. Status 422 with the error."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    text = request.POST.get("days", "")
    try:
        days = _days(text)
        change_project(entry.project, retention_days=days, actor=principal)
    except InvalidRetention as refusal:
        return _retention(request, entry, None, text=text, error=f"{refusal}.", status=422)
    told = "kept forever" if days is None else f"deleted {days} day{'' if days == 1 else 's'} after they ended"
    messages.success(request, f"Retention saved. Runs are {told}.")
    return _see("runs:retention", entry.project)


def _budgets(
    request: HttpRequest,
    entry: EnteredProject,
    texts: Mapping[str, str],
    *,
    errors: Mapping[str, str] | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        **page_context(entry, "settings"),
        "rows": [
            {
                "name": name,
                "label": label,
                "help": help_text,
                "value": texts.get(name, ""),
                "error": (errors or {}).get(name),
            }
            for name, (label, help_text) in LABELS.items()
        ],
        "unreadable": _fault(entry.project),
        "command": f"agentops budget {entry.project.slug} --tokens-per-day 2000000 --cost-usd-per-day 20",
    }
    return render(request, "runs/budgets.html", context, status=status)


def _retention(
    request: HttpRequest,
    entry: EnteredProject,
    days: int | None,
    *,
    text: str | None = None,
    error: str = "",
    is_preview: bool = False,
    status: int = 200,
) -> HttpResponse:
    shown = text if text is not None else str(days) if days is not None else ""
    context: dict[str, Any] = {
        **page_context(entry, "settings"),
        "days": days,
        "value": shown[:40],
        "error": error,
        "is_preview": is_preview,
        "estimate": estimate(entry.project, days) if days is not None and not error else None,
        "most_days": MAX_RETENTION_DAYS,
        "command": f"agentops retention --dry-run --project {entry.project.slug} --older-than {days or 90}",
    }
    return render(request, "runs/retention.html", context, status=status)


def _days(text: str) -> int | None:
    """Return the number of days in a field; None if it is empty. Raise InvalidRetention."""
    text = text.strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or not 1 <= int(text) <= MAX_RETENTION_DAYS:
        raise InvalidRetention(f"Enter a number of days from 1 to {MAX_RETENTION_DAYS}, not {text[:20]!r}")
    return int(text)


def _amount(text: str) -> int | str | None:
    """Return tokens as a number, and money as text, as `agentops budget` does."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


def _error_of(name: str, value: int | str | None) -> str:
    if value is None:
        return ""
    try:
        day_limits({"budgets": {name: value}})
    except InvalidBudget as refusal:
        text = str(refusal)
        return f"{text[:1].upper()}{text[1:]}."
    return ""


def _stored(project: Project) -> dict[str, str]:
    try:
        return {name: str(value) for name, value in day_budgets.of(project).items()}
    except InvalidBudget:
        return {}


def _fault(project: Project) -> str:
    """Return why the stored budgets are invalid; empty if they are valid."""
    try:
        day_budgets.of(project)
    except InvalidBudget as refusal:
        return str(refusal)
    return ""


def _see(view_name: str, project: Project) -> HttpResponse:
    return HttpResponse(status=303, headers={"Location": resolve_url(view_name, project.slug)})
