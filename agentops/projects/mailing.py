"""Notifications by e-mail: to whoever operates the project and has an address. Sent by workers, each piece by one.

A notification is taken up by moving its due time on, in one guarded UPDATE, and its
number of attempts is the token: who finds another number has been overtaken and leaves. Each person's mail is its own
(nobody reads who else has it), and is noted at once. So everyone has it at least once: whoever dies in between leaves
one mail at most that is sent again, when the claim has run out, with the same Message-ID.
"""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone

from agentops.projects.access import RULES, Action
from agentops.projects.models import Membership, Notification, NotificationReceipt
from agentops.projects.names import one_line

log = logging.getLogger(__name__)

#: For one mail, of which each exchange with the server ends after EMAIL_TIMEOUT.
CLAIMED_FOR = timedelta(minutes=5)
#: The wait after the first failed attempt; doubled after each further one.
BACKOFF = timedelta(minutes=1)
LONGEST = timedelta(hours=1)
MAX_ATTEMPTS = 10
#: What a server that was off for longer would be told of is no news.
TOO_OLD = timedelta(days=1)
MAX_SUBJECT = 150
MAX_ERROR = 500
#: Of one person's mail: the server takes others'.
REFUSED = (smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError)
#: Of the server itself: to ask it again at once is of no use.
UNREACHABLE = (smtplib.SMTPException, OSError)


class Interrupted(Exception):
    """This process leaves the notification to another one."""


def send_due(stopped: Callable[[], bool] = lambda: False) -> int:
    """Send what is due, one after the other, until there is nothing left; how many were taken up."""
    taken = 0
    while not stopped():
        found = take_due()
        if found is None:
            return taken
        taken += 1
        send(found, stopped)
    return taken


def take_due() -> Notification | None:
    """The one that is due for longest, the caller's for a while; None where there is none to take."""
    while True:
        now = timezone.now()
        due = Notification.objects.filter(email_due_at__lte=now).order_by("email_due_at")
        found = due.select_related("project").first()
        if found is None:
            return None
        # The WHERE is the rule: of all who saw it one finds it as it was.
        mine = Notification.objects.filter(pk=found.pk, email_attempts=found.email_attempts, email_due_at__lte=now)
        found.email_attempts += 1
        if mine.update(email_attempts=found.email_attempts, email_due_at=now + CLAIMED_FOR):
            return found


def recipients(found: Notification) -> list[Any]:
    """Who may operate the project now, can sign in, has an address, and has not had this one."""
    roles = RULES[Action.OPERATE].roles
    members = Membership.objects.filter(project=found.project_id, role__in=roles)
    had = NotificationReceipt.objects.filter(notification=found.pk, emailed_at__isnull=False)
    people = get_user_model()._default_manager.filter(pk__in=members.values("user"), is_active=True)
    return list(people.exclude(email="").exclude(pk__in=had.values("user")).order_by("pk"))


def send(found: Notification, stopped: Callable[[], bool]) -> None:
    """Send what `take_due` has returned, unless another worker has taken it over by now."""
    if found.created_at < timezone.now() - TOO_OLD:
        return _give_up(found, "not sent within a day")
    if found.email_attempts > MAX_ATTEMPTS:  # also of those that ended their worker each time
        return _give_up(found, found.email_error or "no attempt came to an end")
    connection = get_connection()
    try:
        problems = list(_problems(found, connection, stopped))
    except UNREACHABLE as error:
        problems = [_told(error)]
    except Interrupted:
        return None
    finally:
        _close(connection)
    if problems:
        return _again(found, problems[0])
    _mine(found).update(emailed_at=timezone.now(), email_due_at=None, email_error="")
    return None


def _problems(found: Notification, connection: BaseEmailBackend, stopped: Callable[[], bool]) -> Iterator[str]:
    """Send to each who has not had it yet; what was wrong with those who still have not."""
    for person in recipients(found):
        if stopped():
            _mine(found).update(email_due_at=timezone.now())  # another worker goes on with the others at once
            raise Interrupted
        if not _mine(found).update(email_due_at=timezone.now() + CLAIMED_FOR):
            raise Interrupted  # overtaken, or forgotten
        try:
            validate_email(person.email)
            connection.open()
            _message(found, person, connection).send()
        except ValidationError:
            yield f"user {person.pk} has no usable address"
        except REFUSED as error:
            yield _told(error)
        else:
            _note(found, person)


def _note(found: Notification, person: Any) -> None:
    """That they have it. One that was forgotten meanwhile needs no note."""
    with transaction.atomic():
        if Notification.objects.select_for_update(no_key=True).filter(pk=found.pk).first() is not None:
            had = {"project_id": found.project_id, "emailed_at": timezone.now()}
            NotificationReceipt.objects.update_or_create(notification=found, user=person, defaults=had)


def _mine(found: Notification) -> QuerySet[Notification]:
    """The row, as long as nobody has taken it up after us."""
    return Notification.objects.filter(pk=found.pk, email_attempts=found.email_attempts, email_due_at__isnull=False)


def _again(found: Notification, problem: str) -> None:
    if found.email_attempts >= MAX_ATTEMPTS:
        return _give_up(found, problem)
    wait = min(BACKOFF * 2 ** (found.email_attempts - 1), LONGEST)
    _mine(found).update(email_due_at=timezone.now() + wait, email_error=problem)
    log.warning("a notification was not mailed, attempt %s of %s", found.email_attempts, MAX_ATTEMPTS)
    return None


def _give_up(found: Notification, problem: str) -> None:
    _mine(found).update(email_due_at=None, email_error=problem)
    log.warning("a notification is not mailed any more", extra={"notification_id": str(found.pk)})


def _told(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", MAX_ERROR)


def _close(connection: BaseEmailBackend) -> None:
    with suppress(*UNREACHABLE):
        connection.close()


# --- One mail -------------------------------------------------------------------------------------------------


def _message(found: Notification, person: Any, connection: BaseEmailBackend) -> EmailMessage:
    # Title and slug are single lines; Django refuses a header that is not, so nobody adds one of their own.
    subject = one_line(f"[agentops] {found.project.slug}: {found.title}", MAX_SUBJECT)
    headers = {
        "Message-ID": f"<{found.pk}.{person.pk}@{urlsplit(settings.AGENTOPS_BASE_URL).hostname}>",
        # RFC 3834: no absence notes in answer to this.
        "Auto-Submitted": "auto-generated",
    }
    return EmailMessage(
        subject, _text(found), settings.DEFAULT_FROM_EMAIL, [person.email], headers=headers, connection=connection
    )


def _text(found: Notification) -> str:
    site, project = settings.AGENTOPS_BASE_URL, found.project
    parts = [found.title, found.text]
    if found.run_id is not None:
        parts.append(f"The run: {site}{reverse('runs:detail', args=[found.run_id])}")
    parts.append(f"All notifications: {site}{reverse('notifications', args=[project.slug])}")
    parts.append(f"You get this because you may operate runs of the project {project.name}.")
    return "\n\n".join(filter(None, parts)) + "\n"
