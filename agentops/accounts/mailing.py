"""Workers send notifications by e-mail to the operators and admins of the project.

A worker claims a notification by moving its due time in a conditional UPDATE. The number of attempts is the fencing
token: a worker that finds another number stops. Each recipient gets a separate message, which is recorded at once.
Delivery is at least once: if a worker dies, at most one message is sent again after the claim expires, with the same
Message-ID.

E-mails that request an approval contain a signed link for one recipient of one notification. It is valid as long as
the address that it was sent to is the verified address of the recipient.
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
from django.core import signing
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import QuerySet
from django.urls import reverse
from django.utils.crypto import constant_time_compare, salted_hmac

from agentops.accounts.access import RULES, Action
from agentops.accounts.login.addresses import is_verified, with_addresses
from agentops.accounts.models import Membership, Notification, NotificationReceipt, Project
from agentops.accounts.names import one_line
from agentops.base import database_clock
from agentops.base.fair_shares import rounds

SALT = "agentops.accounts.approval_links"
#: Maximum age of a link: approvals can be pending this long. What the link still allows depends on the approval.
VALID_FOR = timedelta(days=30)


def approval_path(notification_id: UUID, recipient: Any) -> str:
    """Return the path of the link by which a recipient can decide about an approval."""
    token = signing.dumps([notification_id.hex, recipient.pk, _digest(recipient.email)], salt=SALT)
    return reverse("runs:approval-link", args=[token])


def read_approval_link(token: str) -> tuple[UUID, Any] | None:
    """Return the ID of the notification, and the recipient, of a link.

    None if the link is forged, damaged or too old, or if the recipient is inactive or now has another address.
    """
    try:
        notification_id, user_id, digest = signing.loads(token, salt=SALT, max_age=VALID_FOR)
        notification, user_pk = UUID(notification_id), int(user_id)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    people = get_user_model().objects.filter(pk=user_pk, is_active=True)
    user = with_addresses(people).first()
    if user is None or not is_verified(user) or not constant_time_compare(digest, _digest(user.email)):
        return None
    return notification, user


def _digest(email: str) -> str:
    """Return a digest that binds a link to an e-mail address."""
    return salted_hmac(SALT, email.lower(), algorithm="sha256").hexdigest()[:32]


log = logging.getLogger(__name__)

#: Duration of a claim, renewed for each message.
CLAIMED_FOR = timedelta(minutes=5)
#: Delay after the first failed attempt, doubled after each further one up to MAX_BACKOFF.
BACKOFF = timedelta(minutes=1)
MAX_BACKOFF = timedelta(hours=1)
MAX_ATTEMPTS = 10
#: Older notifications are not sent.
TOO_OLD = timedelta(days=1)
MAX_SUBJECT = 150
MAX_ERROR = 500
#: Errors that concern one message: the others are still sent.
REFUSED = (smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError)
#: Errors of the server, which end the attempt.
UNREACHABLE = (smtplib.SMTPException, OSError)


class Interrupted(Exception):
    """This worker stops sending the notification, because another one continues, or because it must end."""


def send_due(is_stopping: Callable[[], bool] = lambda: False, *, is_over: Callable[[], bool] = lambda: False) -> int:
    """Send all due notifications, alternating between projects, and return how many were claimed.

    `is_over` is checked before each notification, `is_stopping` also before each message: then another worker sends the
    remaining messages, which counts as another attempt.
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
        # Only one of several workers changes the row, because the change makes the condition false.
        unclaimed = Notification.objects.filter(
            pk=notification.pk, email_attempts=notification.email_attempts, email_due_at__lte=now
        )
        notification.email_attempts += 1
        if unclaimed.update(email_attempts=notification.email_attempts, email_due_at=now + CLAIMED_FOR):
            return notification


def recipients(notification: Notification) -> list[Any]:
    """Return the active operators and admins with a verified address who have not received the notification."""
    members = _members(notification.project_id)
    receipts = NotificationReceipt.objects.filter(notification=notification.pk, emailed_at__isnull=False)
    people = get_user_model().objects.filter(pk__in=members.values("user"), is_active=True).exclude(email="")
    remaining = with_addresses(people.exclude(pk__in=receipts.values("user"))).order_by("pk")
    return [person for person in remaining if is_verified(person)]


def gets_mail(project: Project, user_id: int | None) -> bool:
    """Return whether a user gets mail about a project, provided that their address is verified.

    Superusers who are not members may operate every project, but get no mail about it.
    """
    return _members(project.pk).filter(user=user_id).exists()


def _members(project_id: UUID) -> QuerySet[Membership]:
    """Return the operators and admins of a project."""
    return Membership.objects.filter(project=project_id, role__in=RULES[Action.OPERATE].roles)


def send(notification: Notification, is_stopping: Callable[[], bool]) -> None:
    """Send a notification that `take_due` has returned, unless another worker has claimed it in the meantime."""
    if notification.created_at < database_clock.now() - TOO_OLD:
        return _give_up(notification, "not sent within a day")
    if notification.email_attempts > MAX_ATTEMPTS:  # the worker died in the last attempt
        return _give_up(notification, notification.email_error or "no attempt finished")
    connection = get_connection()
    try:
        problems = list(_send_to_each(notification, connection, is_stopping))
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


def _send_to_each(
    notification: Notification, connection: BaseEmailBackend, is_stopping: Callable[[], bool]
) -> Iterator[str]:
    """Send the notification to the remaining recipients, and yield a text for each one that failed."""
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
            _store_receipt(notification, person)


def _store_receipt(notification: Notification, person: Any) -> None:
    """Store that the user has received the notification, unless it was deleted in the meantime."""
    with transaction.atomic():
        if Notification.objects.select_for_update(no_key=True).filter(pk=notification.pk).first() is not None:
            values = {"project_id": notification.project_id, "emailed_at": database_clock.now()}
            NotificationReceipt.objects.update_or_create(notification=notification, user=person, defaults=values)


def _claimed_row(notification: Notification) -> QuerySet[Notification]:
    """Return the row of a notification, if this worker's claim is still valid; otherwise no row."""
    return Notification.objects.filter(
        pk=notification.pk, email_attempts=notification.email_attempts, email_due_at__isnull=False
    )


def _retry_later(notification: Notification, problem: str) -> None:
    """Plan the next attempt, or give up after the last one."""
    if notification.email_attempts >= MAX_ATTEMPTS:
        return _give_up(notification, problem)
    wait = min(BACKOFF * 2 ** (notification.email_attempts - 1), MAX_BACKOFF)
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
        # Prevents automatic replies (RFC 3834).
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
        parts.append(f"Approve or deny, without a login: {site}{approval_path(notification.pk, person)}")
    if notification.run_id is not None:
        parts.append(f"Run: {site}{reverse('runs:detail', args=[notification.run_id])}")
    parts.append(f"All notifications: {site}{reverse('notifications', args=[project.slug])}")
    parts.append(f"You receive this e-mail because you are an operator or admin of the project {project.name}.")
    return "\n\n".join(filter(None, parts)) + "\n"
