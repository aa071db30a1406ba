"""Send notifications by e-mail to operators and admins of the project. Workers call this.

A worker claims a notification by moving its due time in a conditional UPDATE. The number of attempts is the fencing
token: a worker that finds another number stops. Each recipient gets a separate message, which is recorded at once.
Delivery is at least once: if a worker dies, at most one message is sent again after the claim expires, with the same
Message-ID.
"""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import QuerySet
from django.urls import reverse

from agentops.accounts import approval_links
from agentops.accounts.access import RULES, Action
from agentops.accounts.login.addresses import is_verified, with_addresses
from agentops.accounts.models import Membership, Notification, NotificationReceipt, Project
from agentops.accounts.names import one_line
from agentops.base import database_clock
from agentops.base.limits.turns import rounds

log = logging.getLogger(__name__)

#: Duration of a claim, renewed for each message.
CLAIMED_FOR = timedelta(minutes=5)
#: Delay after the first failed attempt, doubled after each further one up to LONGEST.
BACKOFF = timedelta(minutes=1)
LONGEST = timedelta(hours=1)
MAX_ATTEMPTS = 10
#: Older notifications are not sent.
TOO_OLD = timedelta(days=1)
MAX_SUBJECT = 150
MAX_ERROR = 500
#: Errors of one message: others can still be sent.
REFUSED = (smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError)
#: Errors of the server: stop this attempt.
UNREACHABLE = (smtplib.SMTPException, OSError)


class Interrupted(Exception):
    """Another worker continues with the notification."""


def send_due(is_stopping: Callable[[], bool] = lambda: False, *, is_over: Callable[[], bool] = lambda: False) -> int:
    """Send all due notifications, in turns of their projects, and return how many were claimed.

    `is_over` is checked between notifications, `is_stopping` also between recipients; that costs an attempt.
    """
    claimed = 0
    for project_id in rounds(_projects_with_mail):
        if is_stopping() or is_over():
            break
        notification = take_due(project_id)
        if notification is not None:
            claimed += 1
            send(notification, is_stopping)
    return claimed


def _projects_with_mail() -> Iterable[UUID]:
    due = Notification.objects.filter(email_due_at__lte=database_clock.now())
    return due.values_list("project", flat=True).distinct()


def take_due(project_id: UUID) -> Notification | None:
    """Claim the project's notification with the earliest due time; None if none is due."""
    while True:
        now = database_clock.now()
        due = Notification.objects.filter(project=project_id, email_due_at__lte=now).order_by("email_due_at")
        notification = due.select_related("project").first()
        if notification is None:
            return None
        # The condition makes the claim exclusive.
        mine = Notification.objects.filter(
            pk=notification.pk, email_attempts=notification.email_attempts, email_due_at__lte=now
        )
        notification.email_attempts += 1
        if mine.update(email_attempts=notification.email_attempts, email_due_at=now + CLAIMED_FOR):
            return notification


def recipients(notification: Notification) -> list[Any]:
    """Return the active operators and admins with a verified address who have not received the notification."""
    members = _members(notification.project_id)
    had = NotificationReceipt.objects.filter(notification=notification.pk, emailed_at__isnull=False)
    people = get_user_model().objects.filter(pk__in=members.values("user"), is_active=True).exclude(email="")
    remaining = with_addresses(people.exclude(pk__in=had.values("user"))).order_by("pk")
    return [person for person in remaining if is_verified(person)]


def gets_mail(project: Project, user_id: int | None) -> bool:
    """Return whether a user gets mail about a project, once their address is verified.

    Superusers who are not members may operate every project, but get no mail about it.
    """
    return _members(project.pk).filter(user=user_id).exists()


def _members(project_id: UUID) -> QuerySet[Membership]:
    return Membership.objects.filter(project=project_id, role__in=RULES[Action.OPERATE].roles)


def send(notification: Notification, is_stopping: Callable[[], bool]) -> None:
    """Send a notification that `take_due` has returned, unless another worker has claimed it."""
    if notification.created_at < database_clock.now() - TOO_OLD:
        return _give_up(notification, "not sent within a day")
    if notification.email_attempts > MAX_ATTEMPTS:  # also of those that ended their worker each time
        return _give_up(notification, notification.email_error or "no attempt finished")
    connection = get_connection()
    try:
        problems = list(_problems(notification, connection, is_stopping))
    except UNREACHABLE as error:
        problems = [_error_text(error)]
    except Interrupted:
        return None
    finally:
        _close(connection)
    if problems:
        return _retry_later(notification, problems[0])
    _claimed_row(notification).update(emailed_at=database_clock.now(), email_due_at=None, email_error="")
    return None


def _problems(
    notification: Notification, connection: BaseEmailBackend, is_stopping: Callable[[], bool]
) -> Iterator[str]:
    """Send the notification to the remaining recipients and yield the problems."""
    for person in recipients(notification):
        if is_stopping():
            _claimed_row(notification).update(email_due_at=database_clock.now())  # another worker continues at once
            raise Interrupted
        if not _claimed_row(notification).update(email_due_at=database_clock.now() + CLAIMED_FOR):
            raise Interrupted  # claimed by another worker, or deleted
        try:
            validate_email(person.email)
            connection.open()
            _message(notification, person, connection).send()
        except ValidationError:
            yield f"user {person.pk} has no valid e-mail address"
        except REFUSED as error:
            yield _error_text(error)
        else:
            _note(notification, person)


def _note(notification: Notification, person: Any) -> None:
    """Record that the user has received the notification, unless it was deleted in between."""
    with transaction.atomic():
        if Notification.objects.select_for_update(no_key=True).filter(pk=notification.pk).first() is not None:
            had = {"project_id": notification.project_id, "emailed_at": database_clock.now()}
            NotificationReceipt.objects.update_or_create(notification=notification, user=person, defaults=had)


def _claimed_row(notification: Notification) -> QuerySet[Notification]:
    """Return the row if it is still claimed by this worker."""
    return Notification.objects.filter(
        pk=notification.pk, email_attempts=notification.email_attempts, email_due_at__isnull=False
    )


def _retry_later(notification: Notification, problem: str) -> None:
    if notification.email_attempts >= MAX_ATTEMPTS:
        return _give_up(notification, problem)
    wait = min(BACKOFF * 2 ** (notification.email_attempts - 1), LONGEST)
    _claimed_row(notification).update(email_due_at=database_clock.now() + wait, email_error=problem)
    log.warning("could not send a notification by e-mail, attempt %s of %s", notification.email_attempts, MAX_ATTEMPTS)
    return None


def _give_up(notification: Notification, problem: str) -> None:
    _claimed_row(notification).update(email_due_at=None, email_error=problem)
    log.warning("gave up sending a notification by e-mail", extra={"notification_id": str(notification.pk)})


def _error_text(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", MAX_ERROR)


def _close(connection: BaseEmailBackend) -> None:
    with suppress(*UNREACHABLE):
        connection.close()


# --- One mail -------------------------------------------------------------------------------------------------


def _message(notification: Notification, person: Any, connection: BaseEmailBackend) -> EmailMessage:
    # Title and slug are single lines, and Django rejects line breaks in headers.
    subject = one_line(f"[agentops] {notification.project.slug}: {notification.title}", MAX_SUBJECT)
    headers = {
        "Message-ID": f"<{notification.pk}.{person.pk}@{urlsplit(settings.AGENTOPS_BASE_URL).hostname}>",
        # RFC 3834: no automatic replies.
        "Auto-Submitted": "auto-generated",
    }
    return EmailMessage(
        subject,
        _text(notification, person),
        settings.DEFAULT_FROM_EMAIL,
        [person.email],
        headers=headers,
        connection=connection,
    )


def _text(notification: Notification, person: Any) -> str:
    site, project = settings.AGENTOPS_BASE_URL, notification.project
    parts = [notification.title, notification.text]
    if notification.kind == Notification.Kind.APPROVAL:
        parts.append(f"Approve or deny, without a login: {site}{approval_links.url_path(notification.pk, person)}")
    if notification.run_id is not None:
        parts.append(f"Run: {site}{reverse('runs:detail', args=[notification.run_id])}")
    parts.append(f"All notifications: {site}{reverse('notifications', args=[project.slug])}")
    parts.append(f"You receive this e-mail because you are an operator or admin of the project {project.name}.")
    return "\n\n".join(filter(None, parts)) + "\n"
