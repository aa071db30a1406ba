"""The alert rules of a project: the list with their state, and the form of one rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import SECRET, SHORT, add_refusal, see_other
from agentops.base import database_clock
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import InvalidQuery
from runs.alerts import alert_rule_changes
from runs.alerts.alert_rule_changes import MAX_RULES, add_rule, change_rule, remove_rule, rule_of, rules_of, send_test
from runs.alerts.alert_texts import describe, open_counts
from runs.alerts.rule_definition import LIMIT_NAMES, LIMITS, OF_PROJECT, URL_NAMES
from runs.errors import InvalidAlertRule
from runs.models import AlertDelivery, AlertRule
from runs.pages.forms.fields import NEEDED, NUMBER, CountField, HiddenURL, OneLineField
from runs.pages.page_parts import enter_project, parse_enabled, parse_uuid, project_context

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
#: Kind → help of its minutes, if that differs from the field's.
_MINUTES_HELP: dict[str, str] = {
    AlertRule.Kind.RUN_WAITING: "How long the run has waited. 0: it is announced at once.",
    AlertRule.Kind.SINK_BEHIND: "How long the oldest event for a sink has waited.",
}
#: Attributes of the control of a required number.
_AMOUNT = NEEDED | {"inputmode": "decimal"}


@dataclass(frozen=True)
class ListedAlertRule:
    """A rule in the list."""

    rule: AlertRule
    kind: str
    #: The rule in a sentence.
    description: str
    open_alerts: int
    muted_until: Any
    #: The error of the newest delivery; empty if that succeeded.
    problem: str


class AlertRuleForm(forms.Form):
    """The form of a new rule of a kind, or of an existing rule."""

    name = OneLineField("Name", attrs=NEEDED | {"maxlength": 63})
    minutes = CountField("Minutes", "How long the run has had no event.", _AMOUNT, required=True)
    limit_usd = OneLineField("Limit in US dollars", "Calls without a known price do not count.", _AMOUNT)
    percent = CountField(
        "Percent",
        "A run that paused after an error, or a cut or refused answer, failed too.",
        _AMOUNT,
        required=True,
    )
    last_runs = CountField(
        "Of the last runs", "1 to 100 runs of the agent that completed or failed.", _AMOUNT, required=True
    )
    min_runs = CountField("If there are at least", "With fewer runs, nothing is announced.", _AMOUNT, required=True)
    agent = OneLineField(
        "Agent",
        "Name of an agent, or `flow NAME` for runs of a flow. Empty: all.",
        SHORT | {"maxlength": 128},
    )
    label = OneLineField("Label", "Only runs with this label. Empty: all runs.", {"maxlength": 200})
    sends_email = forms.BooleanField(
        required=False, label="Bell, and e-mail to operators and admins of the project", initial=True
    )
    webhook_url = OneLineField(
        "Webhook",
        "JSON, signed after Standard Webhooks. The signing secret is shown once, after saving.",
        SECRET | SHORT | {"maxlength": 2000, "placeholder": "https://"},
        widget=HiddenURL,
    )
    slack_url = OneLineField(
        "Slack webhook",
        "An incoming webhook of Slack or a compatible program.",
        SECRET | SHORT | {"maxlength": 2000, "placeholder": "https://"},
        widget=HiddenURL,
    )
    group_minutes = CountField(
        "Minutes between messages",
        "For one agent. Runs that are found in between are counted in the next message.",
        NUMBER,
        required=True,
        initial=10,
    )
    repeat_hours = CountField(
        "Hours until it is repeated", "For what lasts. 0: never.", NUMBER, required=True, initial=24
    )
    announces_end = forms.BooleanField(required=False, label="Also announce when it is over")

    def __init__(self, kind: str, rule: AlertRule | None, data: Any = None) -> None:
        super().__init__(data, initial=_initial(kind, rule), auto_id="rule-%s")
        self.kind, self.rule = kind, rule
        # The fields that rules of this kind do not have.
        absent = {name for name in LIMIT_NAMES if name not in LIMITS[kind]}
        if kind in OF_PROJECT:
            absent |= {"agent", "label"}
        elif kind == AlertRule.Kind.ERROR_RATE:
            absent.add("label")
        self.fields = {name: field for name, field in self.fields.items() if name not in absent}
        if kind in _MINUTES_HELP:
            self.fields["minutes"].help_text = _MINUTES_HELP[kind]
        if not settings.AGENTOPS_EMAIL:
            self.fields["sends_email"].help_text = "No mail server is configured (`EMAIL_URL`): only the notification."
        for name, shown in (rule.shown_urls if rule else {}).items():
            field = self.fields[name]
            field.help_text = f"{field.help_text} Stored: `{shown}`. Empty: it stays."
            field.widget.attrs["placeholder"] = shown
            self.fields[f"remove_{name}"] = forms.BooleanField(required=False, label="Remove this URL")

    @property
    def title(self) -> str:
        return KINDS[AlertRule.Kind(self.kind)]

    @property
    def limit_fields(self) -> list[forms.BoundField]:
        """The fields for the limits of this kind of rule, and for the agent and the label that select its runs."""
        return [self[name] for name in (*LIMIT_NAMES, "agent", "label") if name in self.fields]

    @property
    def url_fields(self) -> list[forms.BoundField]:
        """The fields of the channels' URLs, each with the box that removes a stored one."""
        names = [each for name in URL_NAMES for each in (name, f"remove_{name}")]
        return [self[name] for name in names if name in self.fields]

    def clean(self) -> dict[str, Any]:
        """Return the values as columns of a rule. An empty URL is left out, so that the stored one stays."""
        values = self.cleaned_data
        removed = {name for name in URL_NAMES if values.pop(f"remove_{name}", False)}
        if not values.get("limit_usd", True):
            values["limit_usd"] = None
        return {name: each for name, each in values.items() if name not in URL_NAMES or each or name in removed}


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the rules. `kind` opens the form of a new rule of that kind; `rule` opens the form of an existing rule."""
    entry = enter(principal_of(request), project, Action.CONFIGURE)
    kind, rule_id = request.GET.get("kind", ""), request.GET.get("rule", "")
    form = None
    if rule_id:
        rule = rule_of(entry.project, _id(rule_id))
        form = AlertRuleForm(rule.kind, rule)
    elif kind:
        form = AlertRuleForm(_kind(kind), None)
    return _page(request, entry, form)


@sensitive_post_parameters("webhook_url", "slack_url")
@require_POST
def save(request: HttpRequest, project: str) -> HttpResponse:
    """Add a rule of `kind`, or change the rule `rule`. Status 422 and the form with its error if it is invalid.

    The response shows the signing secret of a new webhook, once.
    """
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    rule_id = request.POST.get("rule", "")
    rule = rule_of(entry.project, _id(rule_id)) if rule_id else None
    kind = rule.kind if rule else _kind(request.POST.get("kind", ""))
    form, secret = AlertRuleForm(kind, rule, request.POST), ""
    if form.is_valid():
        try:
            if rule is None:
                _, secret = add_rule(entry.project, {"kind": kind, **form.cleaned_data}, by=principal)
            else:
                _, secret = change_rule(entry.project, rule.pk, form.cleaned_data, by=principal)
        except InvalidAlertRule as refusal:
            add_refusal(form, refusal, {})
    if form.errors:
        return _page(request, entry, form, status=422)
    if secret:
        return _page(request, entry, None, secret=secret, secret_of=form.cleaned_data["name"])
    messages.success(request, "Rule saved. Workers evaluate it within seconds.")
    return see_other("runs:alert-rules", entry.project.slug)


@require_POST
def switch(request: HttpRequest, project: str) -> HttpResponse:
    """Enable or disable the rule `rule`: `enabled` is "yes" or "no"."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    enables = parse_enabled(request)
    change_rule(entry.project, _id(request.POST.get("rule", "")), {"is_enabled": enables}, by=principal)
    messages.success(request, "Rule enabled." if enables else "Rule disabled. Its open alerts are closed.")
    return see_other("runs:alert-rules", entry.project.slug)


@require_POST
def remove(request: HttpRequest, project: str) -> HttpResponse:
    """Remove the rule `rule` with its alerts."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    remove_rule(entry.project, _id(request.POST.get("rule", "")), by=principal)
    messages.success(request, "Rule removed, with its alerts.")
    return see_other("runs:alert-rules", entry.project.slug)


@require_POST
def test(request: HttpRequest, project: str) -> HttpResponse:
    """Send a test message by the channels of the rule `rule`."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    send_test(entry.project, _id(request.POST.get("rule", "")), by=principal)
    messages.success(request, "Test queued. A worker sends it within seconds; this page shows an error if it fails.")
    return see_other("runs:alert-rules", entry.project.slug)


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
    """Show the rules, the form if there is one, and the `secret` of the new webhook of the rule `secret_of`."""
    context = {
        **project_context(entry, "settings"),
        "rows": _rows(entry.project),
        "kinds": [(kind.value, label) for kind, label in KINDS.items()],
        "form": form,
        "max_rules": MAX_RULES,
        "secret": secret,
        "secret_of": secret_of,
    }
    return render(request, "runs/alerts/alert_rules.html", context, status=status)


def _rows(project: Project) -> list[ListedAlertRule]:
    """Return the rows of the project's rules."""
    counts, problems = open_counts(project), _problems(project)
    muted = {mute.rule_id: mute.until for mute in alert_rule_changes.active_mutes(project, database_clock.now())}
    return [
        ListedAlertRule(
            rule,
            kind=KINDS[AlertRule.Kind(rule.kind)],
            description=describe(rule),
            open_alerts=counts.get(rule.pk, 0),
            muted_until=muted.get(rule.pk),
            problem=problems.get(rule.pk, ""),
        )
        for rule in rules_of(project)
    ]


def _problems(project: Project) -> dict[UUID, str]:
    """Return the error of the newest delivery of each rule and channel, if it has one."""
    newest: dict[tuple[UUID, str], str] = {}
    rows = AlertDelivery.objects.filter(message__rule__project=project, attempts__gt=0).order_by("-pk")
    for rule_id, channel, error in rows.values_list("message__rule", "channel", "error")[:200]:
        newest.setdefault((rule_id, channel), error)
    return {rule_id: f"{channel}: {error}" for (rule_id, channel), error in newest.items() if error}


def _initial(kind: str, rule: AlertRule | None) -> dict[str, Any]:
    """Return the initial values of the form: those of the rule, or the defaults of the kind."""
    if rule is None:
        return {"name": KINDS[AlertRule.Kind(kind)], **LIMITS[kind]}
    values = {name: getattr(rule, name) for name in AlertRuleForm.base_fields if name not in URL_NAMES}
    return values | {"limit_usd": "" if rule.limit_usd is None else f"{rule.limit_usd.normalize():f}"}


def _kind(text: str) -> str:
    """Return the name of a kind. Raises InvalidQuery if it is unknown."""
    if text not in LIMITS:
        raise InvalidQuery(f"kind must be one of {', '.join(AlertRule.Kind.values)}")
    return text


def _id(text: str) -> UUID:
    """Return the ID of a rule. Raises InvalidQuery."""
    rule_id = parse_uuid(text)
    if rule_id is None:
        raise InvalidQuery("rule must be the ID of a rule")
    return rule_id
