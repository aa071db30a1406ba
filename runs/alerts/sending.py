"""Stores messages with their deliveries, and sends them to webhooks and Slack (e-mail: agentops.accounts.mailing).

A message is stored in the transaction that decides to send it. Workers send its deliveries: a worker claims one by
moving its due time in a conditional UPDATE, and the number of attempts is the fencing token. Delivery is at least once:
if a worker dies between the response and its commit, the request is sent again after the claim expires, with the same
ID.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection
from django.db.models import F

from agentops.accounts import notifications, sealing
from agentops.accounts.models import Notification
from agentops.accounts.names import one_line
from agentops.base import database_clock
from agentops.base.database_clock import Now
from agentops.base.fair_shares import rounds
from agentops.base.http.receivers import DISABLING, FINAL, PostFailed, pause_s, post, signed_headers
from agentops.base.redaction import project_scope
from runs import chaos
from runs.alerts.alert_plan import Announcement
from runs.alerts.alert_texts import email_of, slack_body, webhook_body
from runs.alerts.rule_definition import channels_of
from runs.lifecycle import wake
from runs.models import AgentRun, Alert, AlertDelivery, AlertFinding, AlertMessage, AlertRule
from timeline.display import clean

Event = AlertMessage.Event
#: Channel → the URL field that it needs.
URL_OF = {AlertDelivery.Channel.WEBHOOK: "webhook_url", AlertDelivery.Channel.SLACK: "slack_url"}
#: The kinds of notifications that tell the members that a run waits for a person.
_ABOUT_WAITS = (Notification.Kind.PAUSED, Notification.Kind.APPROVAL, Notification.Kind.ESCALATED)


def announce(rule: AlertRule, announcement: Announcement, now: datetime) -> AlertMessage:
    """Store a message about an alert with its deliveries, mark its findings as announced, and notify the members."""
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
    """Store a message with its deliveries, and wake a worker to send them after the commit."""
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
    notified = _runs_with_notification(message.rule, [each.run_id for each in findings if each.run_id is not None])
    new_findings = [finding for finding in findings if finding.run_id not in notified]
    if findings and not new_findings:
        return
    email = email_of(message, new_findings)
    notifications.notify(
        message.project_id,
        kind=Notification.Kind.ALERT,
        title=email.title,
        text=email.text,
        run_id=new_findings[0].subject_id if len(new_findings) == 1 else None,
    )


def _runs_with_notification(rule: AlertRule, run_ids: Collection[UUID]) -> set[UUID | None]:
    """Return the waiting runs about whose current wait the members already have a notification."""
    if rule.kind != AlertRule.Kind.RUN_WAITING:
        return set()
    queued = dict(AgentRun.objects.filter(pk__in=run_ids).values_list("pk", "queued_at"))
    about = Notification.objects.filter(run_id__in=run_ids, kind__in=_ABOUT_WAITS)
    return {run_id for run_id, at in about.values_list("run_id", "created_at") if run_id and at >= queued[run_id]}


log = logging.getLogger(__name__)
State, Channel = AlertDelivery.State, AlertDelivery.Channel
#: Duration of a claim: longer than the maximum time of a request.
CLAIMED_FOR = timedelta(seconds=60)
#: Seconds from the first failed attempt to the second, and so on. After the last of these attempts, the delivery is
#: given up.
SCHEDULE_S = (5, 30, 120, 600, 1800, 3600, 3600, 7200)
MAX_ERROR = 500
#: HTTP statuses after which a delivery is given up at once.
REFUSED = FINAL | DISABLING


def send_due(is_stopping: Callable[[], bool] = lambda: False) -> int:
    """Send all due deliveries, alternating between projects, and return how many were claimed."""
    claimed = 0
    for project_id in rounds(_projects_with_alerts):
        if is_stopping():
            break
        delivery = take_due(project_id)
        if delivery is not None:
            claimed += 1
            attempt(delivery)
    return claimed


def _projects_with_alerts() -> Iterable[UUID]:
    return AlertDelivery.objects.due().order_by().values_list("project", flat=True).distinct()


def take_due(project_id: UUID) -> AlertDelivery | None:
    """Claim the project's delivery that has been due longest; None if none is due."""
    while (candidate := AlertDelivery.objects.due().filter(project=project_id).first()) is not None:
        unclaimed = AlertDelivery.objects.due().filter(pk=candidate.pk, attempts=candidate.attempts).order_by()
        # Only one of several workers changes the row, because the change makes the condition false.
        if unclaimed.update(attempts=F("attempts") + 1, due_at=Now() + CLAIMED_FOR):
            rows = AlertDelivery.objects.select_related("message__rule", "message__alert", "message__project")
            return rows.filter(pk=candidate.pk, attempts=candidate.attempts + 1).first()
    return None


def attempt(delivery: AlertDelivery) -> bool:
    """Send a claimed delivery and store the result. Return whether the receiver accepted it."""
    try:
        status = _send(delivery)
    except PostFailed as failure:
        _record_failure(delivery, failure)
        return False
    except Exception as error:
        # A delivery that fails for an unknown reason must not delay others, and must be given up in the end.
        log.exception("an alert failed unexpectedly", extra={"delivery_id": str(delivery.pk)})
        _record_failure(delivery, PostFailed(f"unexpected error: {type(error).__name__}"))
        return False
    chaos.point("alert.delivered")
    _update_claimed(delivery, state=State.SENT, due_at=None, sent_at=database_clock.now(), status_code=status, error="")
    return True


def _send(delivery: AlertDelivery) -> int:
    """Send the message without holding a database connection, and return the HTTP status. Raises `PostFailed`."""
    message = delivery.message
    try:
        channels = channels_of(message.rule)
    except sealing.Unreadable as error:
        raise PostFailed(f"the URL cannot be decrypted: {error}") from None
    is_slack = delivery.channel == Channel.SLACK
    url = channels.slack_url if is_slack else channels.webhook_url
    if not url:
        raise PostFailed("the rule has no such channel any more", status=410)
    with project_scope.limited_to(message.project_id):
        body = (slack_body(message) if is_slack else webhook_body(message)).encode()
    headers = {"Content-Type": "application/json"}
    if not is_slack:
        headers = signed_headers([channels.webhook_secret], f"msg_{delivery.pk.hex}", body)
    if not connection.in_atomic_block:
        connection.close()
    return post(url, body, headers).status


def _record_failure(delivery: AlertDelivery, failure: PostFailed) -> None:
    """Store that an attempt failed, and when the next one is due; or that the delivery is given up."""
    is_dead = failure.status in REFUSED or delivery.attempts > len(SCHEDULE_S)
    wait = None if is_dead else Now() + timedelta(seconds=pause_s(SCHEDULE_S, delivery.attempts, failure.retry_after_s))
    error = one_line(clean(str(failure)), MAX_ERROR)
    state = State.DEAD if is_dead else State.WAITING
    _update_claimed(delivery, state=state, due_at=wait, status_code=failure.status, error=error)
    log.warning("an alert was not accepted", extra={"delivery_id": str(delivery.pk), "is_dead": is_dead})


def _update_claimed(delivery: AlertDelivery, **values: object) -> None:
    """Set columns of a delivery, unless another worker has claimed it in the meantime."""
    rows = AlertDelivery.objects.filter(pk=delivery.pk, attempts=delivery.attempts, state=State.WAITING)
    rows.update(**values)
