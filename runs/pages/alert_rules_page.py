"""The alert rules of a project: the list with their state, and the form of one rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render, resolve_url
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import InvalidQuery
from runs.alerts import mutes
from runs.alerts.alert_lists import open_counts, says
from runs.alerts.alert_rule_changes import MAX_RULES, add_rule, change_rule, remove_rule, rule_of, rules_of, send_test
from runs.alerts.channels import URL_NAMES
from runs.alerts.rule_definition import LIMIT_NAMES, LIMITS, OF_PROJECT
from runs.errors import InvalidAlertRule
from runs.models import AlertDelivery, AlertRule
from runs.pages.agents.agents_page import page_context
from runs.pages.forms import fields

#: Kind → label of the button that adds such a rule.
KINDS = {
    AlertRule.Kind.RUN_FAILED: "Run failed",
    AlertRule.Kind.RUN_STALLED: "Run stalled",
    AlertRule.Kind.RUN_WAITING: "Run waits for a person",
    AlertRule.Kind.RUN_COST: "Cost of a run",
    AlertRule.Kind.DAY_COST: "Cost of a day",
    AlertRule.Kind.ERROR_RATE: "Error rate of an agent",
    AlertRule.Kind.SINK_BEHIND: "Sink behind",
}
#: Limit → label and help.
LIMIT_FIELDS = {
    "minutes": ("Minutes", "How long the run has had no event."),
    "limit_usd": ("Limit in US dollars", "Calls without a known price do not count."),
    "percent": ("Percent", "A run that paused after an error failed too."),
    "last_runs": ("Of the last runs", "1 to 100 runs of the agent that completed or failed."),
    "min_runs": ("If there are at least", "With fewer runs, nothing is announced."),
}
_MINUTES: dict[str, tuple[str, str]] = {
    AlertRule.Kind.RUN_WAITING: ("Minutes", "How long the run has waited. 0: it is announced at once."),
    AlertRule.Kind.SINK_BEHIND: ("Minutes", "How long the oldest event for a sink has waited."),
}
URL_FIELDS = {
    "webhook_url": ("Webhook", "JSON, signed after Standard Webhooks. The signing secret is shown once, after saving."),
    "slack_url": ("Slack webhook", "An incoming webhook of Slack or a compatible program."),
}
_FLAGS = ("sends_email", "announces_end")
_WHOLE = ("minutes", "percent", "last_runs", "min_runs", "group_minutes", "repeat_hours")


@dataclass(frozen=True)
class ListedAlertRule:
    """A rule in the list."""

    rule: AlertRule
    kind: str
    says: str
    open_alerts: int
    muted_until: Any
    #: The error of the newest delivery, if it was given up or is being retried.
    problem: str


@dataclass(frozen=True)
class AlertRuleForm:
    """The form of a new rule of a kind, or of an existing rule."""

    kind: str
    #: Empty for a new rule.
    rule_id: str
    values: Mapping[str, Any]
    errors: Mapping[str, str]
    shown_urls: Mapping[str, str]

    @property
    def title(self) -> str:
        return KINDS[AlertRule.Kind(self.kind)]

    @property
    def limits(self) -> list[tuple[str, str, str, Any, str]]:
        """Return the fields of the kind's limits: name, label, help, value and error."""
        names = [name for name in LIMIT_NAMES if name in LIMITS[self.kind]]
        minutes = _MINUTES.get(self.kind, LIMIT_FIELDS["minutes"])
        fields_of = {**LIMIT_FIELDS, "minutes": minutes}
        return [(name, *fields_of[name], self.values.get(name, ""), self.errors.get(name, "")) for name in names]

    @property
    def urls(self) -> list[tuple[str, str, str, str, str]]:
        """Return the fields of the channels: name, label, help, displayed part of the stored URL, and error."""
        return [
            (name, label, help_text, self.shown_urls.get(name, ""), self.errors.get(name, ""))
            for name, (label, help_text) in URL_FIELDS.items()
        ]

    @property
    def general_error(self) -> str:
        return self.errors.get("", "")

    @property
    def has_agent(self) -> bool:
        return self.kind not in OF_PROJECT

    @property
    def has_label(self) -> bool:
        return self.has_agent and self.kind != AlertRule.Kind.ERROR_RATE


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the rules. `kind` opens the form of a new rule of that kind; `rule` opens the form of an existing rule."""
    entry = enter(principal_of(request), project, Action.CONFIGURE)
    kind, rule_id = request.GET.get("kind", ""), request.GET.get("rule", "")
    form = None
    if rule_id:
        form = _form_of(rule_of(entry.project, _id(rule_id)))
    elif kind:
        form = _new_form(_kind(kind))
    return _page(request, entry, form)


@sensitive_post_parameters("webhook_url", "slack_url")
@require_POST
def save(request: HttpRequest, project: str) -> HttpResponse:
    """Add a rule of `kind`, or change the rule `rule`. Status 422 and the form with its error if it is invalid.

    The response shows the signing secret of a new webhook, once.
    """
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    rule_id = request.POST.get("rule", "")
    rule = rule_of(entry.project, _id(rule_id)) if rule_id else None
    kind = rule.kind if rule else _kind(request.POST.get("kind", ""))
    try:
        values = _values(request.POST, kind)
        if rule is None:
            saved, secret = add_rule(entry.project, {"kind": kind, **values}, by=principal)
        else:
            saved, secret = change_rule(entry.project, rule.pk, values, by=principal)
    except InvalidAlertRule as refusal:
        text = f"{str(refusal)[:1].upper()}{str(refusal)[1:]}."
        shown = rule.shown_urls if rule else {}
        form = AlertRuleForm(kind, rule_id, _typed(request.POST), {refusal.field: text}, shown)
        return _page(request, entry, form, status=422)
    if secret:
        return _page(request, entry, None, secret=secret, secret_of=saved.name)
    messages.success(request, "Rule saved. Workers evaluate it within seconds.")
    return _back(entry.project)


@require_POST
def switch(request: HttpRequest, project: str) -> HttpResponse:
    """Enable or disable the rule `rule`: `enabled` is "yes" or "no"."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    choice = request.POST.get("enabled", "")
    if choice not in ("yes", "no"):
        raise InvalidQuery("enabled must be yes or no")
    change_rule(entry.project, _id(request.POST.get("rule", "")), {"is_enabled": choice == "yes"}, by=principal)
    messages.success(request, "Rule enabled." if choice == "yes" else "Rule disabled. Its open alerts are closed.")
    return _back(entry.project)


@require_POST
def remove(request: HttpRequest, project: str) -> HttpResponse:
    """Remove the rule `rule` with its alerts."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    remove_rule(entry.project, _id(request.POST.get("rule", "")), by=principal)
    messages.success(request, "Rule removed, with its alerts.")
    return _back(entry.project)


@require_POST
def test(request: HttpRequest, project: str) -> HttpResponse:
    """Send a test message by the channels of the rule `rule`."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    send_test(entry.project, _id(request.POST.get("rule", "")), by=principal)
    messages.success(request, "Test queued. A worker sends it within seconds; this page shows an error if it fails.")
    return _back(entry.project)


@sensitive_variables("secret")
def _page(
    request: HttpRequest,
    entry: EnteredProject,
    form: AlertRuleForm | None,
    *,
    status: int = 200,
    secret: str = "",
    secret_of: str = "",
) -> HttpResponse:
    context = {
        **page_context(entry, "settings"),
        "rows": _rows(entry.project),
        "kinds": [(kind.value, label) for kind, label in KINDS.items()],
        "form": form,
        "max_rules": MAX_RULES,
        "secret": secret,
        "secret_of": secret_of,
        "has_email": settings.AGENTOPS_EMAIL,
    }
    return render(request, "runs/alert_rules.html", context, status=status)


def _rows(project: Project) -> list[ListedAlertRule]:
    counts, problems = open_counts(project), _problems(project)
    muted = {mute.rule_id: mute.until for mute in mutes.active_mutes(project, database_clock.now())}
    return [
        ListedAlertRule(
            rule, KINDS[AlertRule.Kind(rule.kind)], says(rule), counts.get(rule.pk, 0), muted.get(rule.pk),
            problems.get(rule.pk, ""),
        )
        for rule in rules_of(project)
    ]  # fmt: skip


def _problems(project: Project) -> dict[UUID, str]:
    """Return the error of the newest delivery of each rule and channel, if it has one."""
    newest: dict[tuple[UUID, str], str] = {}
    rows = AlertDelivery.objects.filter(message__rule__project=project, attempts__gt=0).order_by("-pk")
    for rule_id, channel, error in rows.values_list("message__rule", "channel", "error")[:200]:
        newest.setdefault((rule_id, channel), error)
    return {rule_id: f"{channel}: {error}" for (rule_id, channel), error in newest.items() if error}


def _new_form(kind: str) -> AlertRuleForm:
    defaults = {name: value for name, value in LIMITS[kind].items() if value is not None}
    values = {"name": KINDS[AlertRule.Kind(kind)], "sends_email": True, "group_minutes": 10, "repeat_hours": 24}
    return AlertRuleForm(kind, "", {**values, **defaults}, {}, {})


def _form_of(rule: AlertRule) -> AlertRuleForm:
    values = {name: getattr(rule, name) for name in ("name", "agent", "label", *_FLAGS, *_WHOLE)}
    values["limit_usd"] = "" if rule.limit_usd is None else f"{rule.limit_usd.normalize():f}"
    return AlertRuleForm(rule.kind, str(rule.pk), values, {}, rule.shown_urls)


def _typed(post: QueryDict) -> dict[str, Any]:
    """Return the submitted values to fill in the form again, without the URLs, which may be secrets."""
    typed: dict[str, Any] = {name: fields.line(str(value)) for name, value in post.items() if name not in URL_NAMES}
    return typed | {name: name in post for name in _FLAGS}


def _values(post: QueryDict, kind: str) -> dict[str, Any]:
    """Return the form's values as fields of a rule. An empty URL means no change. Raises `InvalidAlertRule`."""
    values: dict[str, Any] = {name: fields.line(post.get(name, "")) for name in ("name", "agent", "label")}
    values |= {name: name in post for name in _FLAGS}
    for name in _WHOLE:
        if name in LIMITS[kind] or name not in LIMIT_NAMES:
            values[name] = _whole(post, name)
    if "limit_usd" in LIMITS[kind]:
        values["limit_usd"] = fields.line(post.get("limit_usd", "")) or None
    for name in URL_NAMES:
        url = fields.line(post.get(name, ""))
        if url or f"remove_{name}" in post:
            values[name] = url
    return values


def _whole(post: QueryDict, name: str) -> int:
    try:
        number = fields.integer(post.get(name, ""))
    except ValueError as error:
        raise InvalidAlertRule(str(error), name) from None
    if number is None:
        raise InvalidAlertRule("enter a number", name)
    return number


def _kind(text: str) -> str:
    if text not in LIMITS:
        raise InvalidQuery(f"kind must be one of {', '.join(AlertRule.Kind.values)}")
    return text


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidQuery("rule must be the ID of a rule") from None


def _back(project: Project) -> HttpResponse:
    return HttpResponse(status=303, headers={"Location": resolve_url("runs:alert-rules", project.slug)})
