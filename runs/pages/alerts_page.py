"""The alerts of a project, newest first, with forms that mute them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, Principal, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import id_of, see_other
from agentops.base import database_clock
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import InvalidQuery
from runs.access import run_in
from runs.alerts import alert_rule_changes
from runs.alerts.alert_plan import is_muted
from runs.alerts.alert_rule_changes import rule_of
from runs.alerts.alert_texts import alerts_of, describe, group_name, page_of, title_of
from runs.models import Alert, AlertFinding, AlertMute, FlowRun
from runs.pages.forms import fields
from runs.pages.page_parts import enter_project, project_context, split_page
from timeline.display import clean

PAGE_SIZE = 30
#: Findings of an alert that are visible at first.
SHOWN = 3
#: Minutes → label of a mute's duration.
DURATIONS = {60: "1 hour", 8 * 60: "8 hours", 24 * 60: "1 day", 7 * 24 * 60: "7 days", 30 * 24 * 60: "30 days"}


@dataclass(frozen=True)
class ShownFinding:
    """A finding of an alert, which is about a run, an agent or the project."""

    #: The run, which can be muted; None if the finding is not about a run.
    run_id: UUID | None
    #: The page of the run or flow run; empty for other findings.
    url: str
    title: str
    status: str
    detail: str
    found_at: datetime
    is_over: bool


@dataclass(frozen=True)
class ShownAlert:
    """An alert in the list."""

    alert: Alert
    title: str
    #: The rule in a sentence.
    rule_description: str
    is_muted: bool
    #: The newest findings.
    findings: list[ShownFinding]
    #: Values and labels of what the form can mute.
    may_mute: list[tuple[str, str]]

    @property
    def first_findings(self) -> list[ShownFinding]:
        return self.findings[:SHOWN]

    @property
    def other_findings(self) -> list[ShownFinding]:
        return self.findings[SHOWN:]

    @property
    def more(self) -> int:
        """Return the number of findings that are not visible at first."""
        return self.alert.count - len(self.first_findings)

    @property
    def unlisted(self) -> int:
        """Return the number of findings that are not listed."""
        return self.alert.count - len(self.findings)


@dataclass(frozen=True)
class ShownMute:
    """A mute that has not ended."""

    mute: AlertMute
    #: What is muted: for display, and for the form that ends the mute.
    what: str
    value: str


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of alerts, newest first. With `show=open`, show only open alerts."""
    entry = enter(principal_of(request), project, Action.READ)
    now, open_only = database_clock.now(), request.GET.get("show", "") == "open"
    before = id_of(request.GET.get("before", ""), "before")
    rows = alerts_of(entry.project, open_only=open_only)
    page, has_more = split_page(rows.filter(pk__lt=before) if before else rows, PAGE_SIZE)
    active = alert_rule_changes.active_mutes(entry.project, now)
    context = {
        **project_context(entry, "alerts"),
        "alerts": [_shown(alert, active, now) for alert in page],
        "mutes": [_shown_mute(mute) for mute in active],
        "durations": DURATIONS,
        "open_only": open_only,
        "is_first_page": before is None,
        "older": page[-1].pk if has_more else None,
    }
    return render(request, "runs/alerts/alerts.html", context)


@require_POST
def mute(request: HttpRequest, project: str) -> HttpResponse:
    """Mute `what`, which is rule:ID, run:ID or agent:NAME, for `minutes`; 0 ends the mute."""
    principal, entry = enter_project(request, project, Action.OPERATE)
    kind, _, name = request.POST.get("what", "").partition(":")
    try:
        minutes = fields.integer(request.POST.get("minutes", ""))
    except ValueError as error:
        raise InvalidQuery(f"minutes: {error}") from None
    if minutes is None or kind not in ("rule", "run", "agent"):
        raise InvalidQuery("send what is muted, as rule:ID, run:ID or agent:NAME, and the minutes")
    _mute(entry.project, kind, name, minutes, by=principal)
    text = f"Muted for {DURATIONS.get(minutes, f'{minutes} minutes')}." if minutes else "Mute ended."
    messages.success(request, text)
    return see_other("runs:alerts", entry.project.slug)


def _mute(project: Project, kind: str, name: str, minutes: int, *, by: Principal) -> None:
    """Mute a rule, run or agent (`kind`) for a number of minutes."""
    if kind == "rule":
        alert_rule_changes.mute(project, minutes, by=by, rule=rule_of(project, _id(name)))
    elif kind == "run":
        alert_rule_changes.mute(project, minutes, by=by, run=run_in(project, _id(name)))
    else:
        alert_rule_changes.mute(project, minutes, by=by, agent=name)


def _shown(alert: Alert, active: list[AlertMute], now: datetime) -> ShownAlert:
    """Return an alert for display. `active` are the mutes that have not ended."""
    findings = [_shown_finding(finding) for finding in getattr(alert, "newest_findings", [])]
    choices = [(f"agent:{alert.agent}", group_name(alert.agent))] if alert.agent else []
    choices += [(f"run:{each.run_id}", f"run {each.title}") for each in findings if each.run_id and not each.is_over]
    choices.append((f"rule:{alert.rule_id}", f"rule {alert.rule.name}"))
    return ShownAlert(
        alert=alert,
        title=title_of(alert.rule, alert.agent, alert.count, ""),
        rule_description=describe(alert.rule),
        is_muted=is_muted(active, alert.rule, alert.agent, None, now),
        findings=findings,
        may_mute=choices,
    )


def _shown_finding(finding: AlertFinding) -> ShownFinding:
    run = finding.run or finding.flow_run
    name = run.name if isinstance(run, FlowRun) else run.title if run else ""
    return ShownFinding(
        run_id=finding.run_id,
        url=page_of(finding) if run else "",
        title=(clean(name) or str(run.pk)) if run else "",
        status=run.status if run else "",
        detail=finding.detail,
        found_at=finding.found_at,
        is_over=finding.ended_at is not None,
    )


def _shown_mute(mute: AlertMute) -> ShownMute:
    if mute.rule is not None:
        return ShownMute(mute, f"rule {mute.rule.name}", f"rule:{mute.rule_id}")
    if mute.run is not None:
        return ShownMute(mute, f"run {clean(mute.run.title) or mute.run_id}", f"run:{mute.run_id}")
    return ShownMute(mute, group_name(mute.agent), f"agent:{mute.agent}")


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidQuery(f"{text[:64]!r} is not a valid ID") from None
