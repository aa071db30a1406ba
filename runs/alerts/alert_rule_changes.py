"""Changes to the alert rules of a project, each with an audit entry in the same transaction.

The caller checks the permission (Action.CONFIGURE).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction

from agentops.accounts import notifications
from agentops.accounts.audit import Actor, record
from agentops.accounts.models import Notification, Project
from agentops.base import database_clock
from agentops.base.refusals import NotFound
from runs.alerts.announcing import store_message
from runs.alerts.channels import URL_NAMES, set_channels
from runs.alerts.condition import OVERLAP
from runs.alerts.message_texts import email_of
from runs.alerts.rule_definition import RuleDefinition, check_urls, checked
from runs.errors import InvalidAlertRule
from runs.models import Alert, AlertFinding, AlertMessage, AlertRule

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
    rule = None
    try:
        rule = AlertRule.objects.filter(project=project, pk=UUID(str(name_or_id))).first()
    except ValueError:
        rule = AlertRule.objects.filter(project=project, name=str(name_or_id)[:64]).first()
    if rule is None:
        raise NotFound("the project has no such alert rule", code="alert_rule_not_found")
    return rule


def add_rule(project: Project, values: Mapping[str, Any], *, by: Actor) -> tuple[AlertRule, str]:
    """Add a rule. Returns it, and the signing secret if it has a webhook; nothing shows the secret again.

    `values` are the fields of `RuleDefinition`, and the URLs of the channels. Raises `InvalidAlertRule`.
    """
    urls, definition = _checked(values)
    rule = AlertRule(
        project=project, checked_at=database_clock.now(), created_by=by if isinstance(by, str) else by.actor
    )
    with transaction.atomic():
        _lock(project)
        if AlertRule.objects.filter(project=project).count() >= MAX_RULES:
            raise InvalidAlertRule(f"a project can have at most {MAX_RULES} alert rules", "")
        secret = _save(rule, definition, urls)
        record(by, AlertAuditAction.RULE_ADDED, project=project, obj=rule, after=document_of(rule))
    return rule, secret


def change_rule(project: Project, rule_id: UUID, values: Mapping[str, Any], *, by: Actor) -> tuple[AlertRule, str]:
    """Change the fields in `values`. Returns the rule, and the signing secret if the webhook is a new one.

    A rule that is disabled closes its alerts without a message. Raises `alert_rule_not_found` or `InvalidAlertRule`.
    """
    with transaction.atomic():
        _lock(project)
        rule = AlertRule.objects.select_for_update(no_key=True).filter(project=project, pk=rule_id).first()
        if rule is None:
            raise NotFound("the project has no such alert rule", code="alert_rule_not_found")
        if values.get("kind", rule.kind) != rule.kind:
            raise InvalidAlertRule("the kind of a rule cannot be changed: add another rule", "kind")
        before, was_enabled = document_of(rule), rule.is_enabled
        urls, definition = _checked({**_definition_of(rule), **values})
        secret = _save(rule, definition, urls)
        if was_enabled and not rule.is_enabled:
            _close_alerts(rule)
        if rule.is_enabled and not was_enabled:
            # Earlier events cause no finding, although evaluation also reads the period before `checked_at`.
            AlertRule.objects.filter(pk=rule.pk).update(checked_at=database_clock.now() + OVERLAP)
        after = document_of(rule)
        if after != before or urls:
            record(by, AlertAuditAction.RULE_CHANGED, project=project, obj=rule, before=before, after=after)
    return rule, secret


def remove_rule(project: Project, rule_id: UUID, *, by: Actor) -> None:
    """Remove a rule with its alerts. Raises `alert_rule_not_found`."""
    with transaction.atomic():
        _lock(project)
        rule = AlertRule.objects.select_for_update().filter(project=project, pk=rule_id).first()
        if rule is None:
            raise NotFound("the project has no such alert rule", code="alert_rule_not_found")
        record(by, AlertAuditAction.RULE_REMOVED, project=project, obj=rule, before=document_of(rule))
        rule.delete()


def send_test(project: Project, rule_id: UUID, *, by: Actor) -> AlertMessage:
    """Send a test message to all channels of a rule. A worker sends it soon. Raises `alert_rule_not_found`."""
    with transaction.atomic():
        rule = AlertRule.objects.select_for_update(no_key=True).filter(project=project, pk=rule_id).first()
        if rule is None:
            raise NotFound("the project has no such alert rule", code="alert_rule_not_found")
        message = store_message(rule, AlertMessage.Event.TEST, database_clock.now())
        if rule.sends_email:
            email = email_of(message, [])
            notifications.notify(project.pk, kind=Notification.Kind.ALERT, title=email.title, text=email.text)
        record(by, AlertAuditAction.RULE_TESTED, project=project, obj=rule)
    return message


def document_of(rule: AlertRule) -> dict[str, Any]:
    """Return a rule for the audit log, without secrets of its channels."""
    definition = _definition_of(rule)
    limit = definition.pop("limit_usd")
    return {**definition, "limit_usd": None if limit is None else f"{limit.normalize():f}", **rule.shown_urls}


def _definition_of(rule: AlertRule) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in RuleDefinition.model_fields}


def _checked(values: Mapping[str, Any]) -> tuple[dict[str, str], RuleDefinition]:
    urls = {name: str(values[name]).strip() for name in URL_NAMES if values.get(name) is not None}
    definition = checked({name: value for name, value in values.items() if name not in URL_NAMES})
    check_urls(urls)
    return urls, definition


def _save(rule: AlertRule, definition: RuleDefinition, urls: Mapping[str, str]) -> str:
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


def _lock(project: Project) -> None:
    """Serialize changes to the rules of a project."""
    Project.objects.locked(project)
