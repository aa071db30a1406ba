"""Stores a message and its deliveries in the transaction that decided it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from agentops.accounts import notifications
from agentops.accounts.models import Notification
from agentops.base.database_clock import Now
from runs.alerts.alert_plan import Announcement
from runs.alerts.message_texts import email_of
from runs.lifecycle import wake
from runs.models import AgentRun, Alert, AlertDelivery, AlertFinding, AlertMessage, AlertRule

Event = AlertMessage.Event
#: Channel → the URL field that it needs.
URL_OF = {AlertDelivery.Channel.WEBHOOK: "webhook_url", AlertDelivery.Channel.SLACK: "slack_url"}
_ABOUT_WAITS = (Notification.Kind.PAUSED, Notification.Kind.APPROVAL, Notification.Kind.ESCALATED)


def announce(rule: AlertRule, announcement: Announcement, now: datetime) -> AlertMessage:
    """Store a message about an alert: the notification for people, and a delivery for each webhook."""
    findings, alert = announcement.findings, announcement.alert
    message = store_message(rule, announcement.event, now, alert=alert, count=len(findings) or alert.count)
    if announcement.event in (Event.OPENED, Event.CONTINUED):
        AlertFinding.objects.filter(pk__in=[finding.pk for finding in findings]).update(message=message)
    Alert.objects.filter(pk=alert.pk).update(announced_at=now)
    if rule.sends_email:
        _notify(message, findings)
    return message


def store_message(
    rule: AlertRule, event: Event, now: datetime, *, alert: Alert | None = None, count: int = 0
) -> AlertMessage:
    """Store a message with its deliveries."""
    message = AlertMessage.objects.create(
        project_id=rule.project_id, rule=rule, alert=alert, event=event, count=count, created_at=now
    )
    AlertDelivery.objects.bulk_create(
        AlertDelivery(project_id=rule.project_id, message=message, channel=channel, due_at=Now(), created_at=now)
        for channel, name in URL_OF.items()
        if name in rule.shown_urls
    )
    wake.ask_for(wake.SEND_ALERTS)
    return message


def _notify(message: AlertMessage, findings: Sequence[AlertFinding]) -> None:
    """Notify the members, unless each run has already notified them of the same wait."""
    told = _told(message.rule, [finding.run_id for finding in findings if finding.run_id is not None])
    untold = [finding for finding in findings if finding.run_id not in told]
    if findings and not untold:
        return
    email = email_of(message, untold)
    notifications.notify(
        message.project_id,
        kind=Notification.Kind.ALERT,
        title=email.title,
        text=email.text,
        run_id=untold[0].subject_id if len(untold) == 1 else None,
    )


def _told(rule: AlertRule, run_ids: Collection[UUID]) -> set[UUID | None]:
    """Return the waiting runs that have notified the members since they were last queued."""
    if rule.kind != AlertRule.Kind.RUN_WAITING:
        return set()
    queued = dict(AgentRun.objects.filter(pk__in=run_ids).values_list("pk", "queued_at"))
    about = Notification.objects.filter(run_id__in=run_ids, kind__in=_ABOUT_WAITS)
    return {run_id for run_id, at in about.values_list("run_id", "created_at") if run_id and at >= queued[run_id]}
