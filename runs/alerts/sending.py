"""Sends messages to webhooks. Workers call this; notifications of people are mailed by agentops.accounts.mailing.

A worker claims a delivery by moving its due time in a conditional UPDATE. The number of attempts is the fencing token.
Delivery is at least once: if a worker dies between the answer and its commit, the request is sent again after the claim
expires, with the same ID.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from uuid import UUID

from django.db import connection
from django.db.models import F

from agentops.accounts.names import one_line
from agentops.accounts.redaction_rules import sealing
from agentops.base import database_clock
from agentops.base.database_clock import Now
from agentops.base.http.receivers import DISABLING, FINAL, PostFailed, pause_s, post, signed_headers
from agentops.base.limits.turns import rounds
from agentops.base.redaction import project_scope
from runs import chaos
from runs.alerts.channels import channels_of
from runs.alerts.message_texts import slack_body, webhook_body
from runs.models import AlertDelivery
from timeline.display import clean

log = logging.getLogger(__name__)
State, Channel = AlertDelivery.State, AlertDelivery.Channel
#: Duration of a claim: longer than a request may last.
CLAIMED_FOR = timedelta(seconds=60)
#: Seconds after each failed attempt until the next one. After the last attempt the delivery is given up.
SCHEDULE_S = (5, 30, 120, 600, 1800, 3600, 3600, 7200)
MAX_ERROR = 500
#: Statuses after which a delivery is given up at once.
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
        mine = AlertDelivery.objects.due().filter(pk=candidate.pk, attempts=candidate.attempts).order_by()
        # The condition makes the claim exclusive.
        if mine.update(attempts=F("attempts") + 1, due_at=Now() + CLAIMED_FOR):
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
        # A failing delivery must not delay others, nor be retried for ever.
        log.exception("an alert failed unexpectedly", extra={"delivery_id": str(delivery.pk)})
        _record_failure(delivery, PostFailed(f"unexpected error: {type(error).__name__}"))
        return False
    chaos.point("alert.delivered")
    _mine(delivery, state=State.SENT, due_at=None, sent_at=database_clock.now(), status_code=status, error="")
    return True


def _send(delivery: AlertDelivery) -> int:
    """Send the message without holding a database connection, and return the status. Raises `PostFailed`."""
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
    """Plan the next attempt, or give up."""
    is_dead = failure.status in REFUSED or delivery.attempts > len(SCHEDULE_S)
    wait = None if is_dead else Now() + timedelta(seconds=pause_s(SCHEDULE_S, delivery.attempts, failure.retry_after_s))
    error = one_line(clean(str(failure)), MAX_ERROR)
    state = State.DEAD if is_dead else State.WAITING
    _mine(delivery, state=state, due_at=wait, status_code=failure.status, error=error)
    log.warning("an alert was not accepted", extra={"delivery_id": str(delivery.pk), "is_dead": is_dead})


def _mine(delivery: AlertDelivery, **values: object) -> None:
    """Change the row if it is still claimed by this worker."""
    rows = AlertDelivery.objects.filter(pk=delivery.pk, attempts=delivery.attempts, state=State.WAITING)
    rows.update(**values)
