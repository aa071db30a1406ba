"""Changes to the alert rules of a project and to mutes, each with an audit entry in the same transaction.

A mute suppresses messages about a rule, a run or an agent for a time. Alerts continue and are marked as muted. The
caller checks the permission: Action.CONFIGURE for rules, Action.OPERATE for mutes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from agentops.accounts import notifications
from agentops.accounts.audit import Actor, name_of, record
from agentops.accounts.models import Notification, Project
from agentops.accounts.names import one_line
from agentops.base import database_clock
from agentops.base.refusals import Invalid, NotFound
from runs.alerts.alert_texts import email_of
from runs.alerts.flow_conditions import OVERLAP
from runs.alerts.rule_definition import MAX_AGENT, URL_NAMES, RuleDefinition, check_urls, checked, set_channels
from runs.alerts.sending import store_message
from runs.errors import InvalidAlertRule
from runs.models import AgentRun, Alert, AlertFinding, AlertMessage, AlertMute, AlertRule

MAX_RULES = 50


class AlertAuditAction(enum.StrEnum):
    """The audited actions on alerts."""

    RULE_ADDED = "alert_rule.added"
    RULE_CHANGED = "alert_rule.changed"
    RULE_REMOVED = "alert_rule.removed"
    RULE_TESTED = "alert_rule.tested"
    MUTED = "alert.muted"
    UNMUTED = "alert.unmuted"


def rules_of(project: Project) -> list[AlertRule]:
    """Return the rules of a project by name."""
    return list(AlertRule.objects.filter(project=project).order_by("name"))


def rule_of(project: Project, name_or_id: str | UUID) -> AlertRule:
    """Return a rule by its ID or its name. Raises `alert_rule_not_found`."""
    rules = AlertRule.objects.filter(project=project)
    try:
        rule = rules.filter(pk=UUID(str(name_or_id))).first()
    except ValueError:
        rule = rules.filter(name=str(name_or_id)[:64]).first()
    return _required(rule)


def _required(rule: AlertRule | None) -> AlertRule:
    if rule is None:
        raise NotFound("the project has no such alert rule", code="alert_rule_not_found")
    return rule


def add_rule(project: Project, values: Mapping[str, Any], *, by: Actor) -> tuple[AlertRule, str]:
    """Add a rule. Return the rule, and the signing secret of its webhook, which can be read only now.

    `values` are the fields of `RuleDefinition`, and the URLs of the channels. The secret is empty without a webhook.
    Raises `InvalidAlertRule`.
    """
    urls, definition = _checked(values)
    rule = AlertRule(project=project, checked_at=database_clock.now(), created_by=name_of(by))
    with transaction.atomic():
        Project.objects.locked(project)
        if AlertRule.objects.filter(project=project).count() >= MAX_RULES:
            raise InvalidAlertRule(f"a project can have at most {MAX_RULES} alert rules", "")
        secret = _save(rule, definition, urls)
        record(by, AlertAuditAction.RULE_ADDED, project=project, obj=rule, after=document_of(rule))
    return rule, secret


def change_rule(project: Project, rule_id: UUID, values: Mapping[str, Any], *, by: Actor) -> tuple[AlertRule, str]:
    """Change the fields in `values`. Return the rule, and the signing secret if its webhook is new, otherwise "".

    If the change disables the rule, its alerts are closed without a message. Raises `NotFound` or `InvalidAlertRule`.
    """
    with transaction.atomic():
        Project.objects.locked(project)
        rule = _locked_rule(project, rule_id)
        if values.get("kind", rule.kind) != rule.kind:
            raise InvalidAlertRule("the kind of a rule cannot be changed: add another rule", "kind")
        before, was_enabled = document_of(rule), rule.is_enabled
        urls, definition = _checked({**_definition_of(rule), **values})
        secret = _save(rule, definition, urls)
        if was_enabled and not rule.is_enabled:
            _close_alerts(rule)
        if rule.is_enabled and not was_enabled:
            # A check reads events from OVERLAP before `checked_at`, so the next checks read only events from now on.
            AlertRule.objects.filter(pk=rule.pk).update(checked_at=database_clock.now() + OVERLAP)
        after = document_of(rule)
        if after != before or urls:
            record(by, AlertAuditAction.RULE_CHANGED, project=project, obj=rule, before=before, after=after)
    return rule, secret


def remove_rule(project: Project, rule_id: UUID, *, by: Actor) -> None:
    """Remove a rule with its alerts. Raises `NotFound`."""
    with transaction.atomic():
        Project.objects.locked(project)
        rule = _locked_rule(project, rule_id, no_key=False)
        record(by, AlertAuditAction.RULE_REMOVED, project=project, obj=rule, before=document_of(rule))
        rule.delete()


def send_test(project: Project, rule_id: UUID, *, by: Actor) -> AlertMessage:
    """Store a test message for all channels of a rule, which a worker sends soon. Raises `NotFound`."""
    with transaction.atomic():
        rule = _locked_rule(project, rule_id)
        message = store_message(rule, AlertMessage.Event.TEST, database_clock.now())
        if rule.sends_email:
            email = email_of(message, [])
            notifications.notify(project.pk, kind=Notification.Kind.ALERT, title=email.title, text=email.text)
        record(by, AlertAuditAction.RULE_TESTED, project=project, obj=rule)
    return message


def _locked_rule(project: Project, rule_id: UUID, *, no_key: bool = True) -> AlertRule:
    """Return a rule, locked for a change; to delete it, lock it with `no_key=False`. Raises `NotFound`."""
    return _required(AlertRule.objects.select_for_update(no_key=no_key).filter(project=project, pk=rule_id).first())


def document_of(rule: AlertRule) -> dict[str, Any]:
    """Return a rule for the audit log, without the secret parts of its channels' URLs."""
    definition = _definition_of(rule)
    limit = definition.pop("limit_usd")
    return {**definition, "limit_usd": None if limit is None else f"{limit.normalize():f}", **rule.shown_urls}


def _definition_of(rule: AlertRule) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in RuleDefinition.model_fields}


def _checked(values: Mapping[str, Any]) -> tuple[dict[str, str], RuleDefinition]:
    """Return the URLs of the channels and the definition in `values`. Raises `InvalidAlertRule`."""
    urls = {name: str(values[name]).strip() for name in URL_NAMES if values.get(name) is not None}
    definition = checked({name: value for name, value in values.items() if name not in URL_NAMES})
    check_urls(urls)
    return urls, definition


def _save(rule: AlertRule, definition: RuleDefinition, urls: Mapping[str, str]) -> str:
    """Save a rule; return the signing secret if its webhook is new. Raises `InvalidAlertRule` if the name is taken."""
    others = AlertRule.objects.filter(project=rule.project_id, name=definition.name).exclude(pk=rule.pk)
    if others.exists():
        raise InvalidAlertRule(f"a rule {definition.name!r} already exists", "name")
    for name in RuleDefinition.model_fields:
        setattr(rule, name, getattr(definition, name))
    rule.kind = definition.kind.value
    secret = set_channels(rule, urls) if urls else ""
    rule.save()
    return secret


def _close_alerts(rule: AlertRule) -> None:
    """Close the alerts of a rule that is no longer evaluated, without sending messages."""
    now = database_clock.now()
    findings = AlertFinding.objects.filter(rule=rule)
    findings.filter(message=None).update(is_silent=True)
    findings.filter(ended_at=None).update(ended_at=now)
    Alert.objects.filter(rule=rule, closed_at=None).update(closed_at=now)


#: The longest mute in minutes: 90 days.
MAX_MINUTES = 90 * 24 * 60


def mute(
    project: Project,
    minutes: int,
    *,
    by: Actor,
    rule: AlertRule | None = None,
    run: AgentRun | None = None,
    agent: str = "",
) -> AlertMute | None:
    """Mute exactly one of a rule, a run or an agent from now on, and return the mute. With 0 minutes, end the mute.

    An earlier mute of the same target is replaced. Raises `Invalid` with the code `invalid_mute`.
    """
    target = _mute_target(rule, run, agent)
    if not 0 <= minutes <= MAX_MINUTES:
        raise Invalid(f"minutes must be 0 to {MAX_MINUTES}", code="invalid_mute", pointer="/minutes")
    name = {"rule": str(rule) if rule else None, "run_id": str(run.pk) if run else None, "agent_id": agent or None}
    with transaction.atomic():
        Project.objects.locked(project)
        if not minutes:
            if AlertMute.objects.filter(project=project, **target).delete()[0]:
                record(by, AlertAuditAction.UNMUTED, project=project, after=name)
            return None
        until = database_clock.now() + timedelta(minutes=minutes)
        values = {"until": until, "created_by": name_of(by)}
        new_mute, _ = AlertMute.objects.update_or_create(project=project, **target, defaults=values)
        record(by, AlertAuditAction.MUTED, project=project, after={**name, "until": until})
    return new_mute


def active_mutes(project: Project, now: datetime) -> list[AlertMute]:
    """Return the active mutes, ordered by end time."""
    rows = AlertMute.objects.filter(project=project, until__gt=now).select_related("rule", "run")
    return list(rows.order_by("until"))


def _mute_target(rule: AlertRule | None, run: AgentRun | None, agent: str) -> dict[str, Any]:
    """Return the column of a mute's target with its value. Raises `Invalid`."""
    if sum((rule is not None, run is not None, bool(agent))) != 1:
        raise Invalid("name exactly one of a rule, a run and an agent", code="invalid_mute", pointer="")
    if agent != one_line(agent, MAX_AGENT):
        raise Invalid(f"{agent[:64]!r} is not the name of an agent", code="invalid_mute", pointer="/agent_id")
    return {"rule": rule} if rule else {"run": run} if run else {"agent": agent}
