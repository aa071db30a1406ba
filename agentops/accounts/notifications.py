"""Notifications of a project: create, list, mark as read and delete. Workers send them by e-mail (mailing.py)."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, QuerySet

from agentops.accounts.models import Notification, NotificationReceipt, Project
from agentops.accounts.names import REFUSED, one_line, truncate
from agentops.base import database_clock

Kind = Notification.Kind

MAX_TITLE = 200
MAX_TEXT = 2000
#: Notifications are deleted after this time.
RETENTION = timedelta(days=90)
#: Rows per transaction.
BATCH_SIZE = 500
#: The bell counts the unread among this number of newest notifications, to bound its cost.
MAX_SEARCHED = 200
#: Maximum count of the bell; more are displayed as "99+".
MAX_COUNT = 99
#: Written in SQL, because every page has a bell, and Django takes ten times as long to build this query as to run it.
_UNREAD = """
SELECT COUNT(*) FROM (SELECT id FROM projects_notification WHERE project_id = %s ORDER BY id DESC LIMIT %s) AS newest
WHERE NOT EXISTS (
    SELECT 1 FROM projects_notificationreceipt AS receipt
    WHERE receipt.notification_id = newest.id AND receipt.user_id = %s AND receipt.read_at IS NOT NULL
)"""


def notify(project_id: UUID, *, kind: str, title: str, text: str = "", run_id: UUID | None = None) -> Notification:
    """Create a notification in the caller's transaction.

    Title and text are truncated and stripped of control characters. The caller masks secrets in them
    (agentops.base.redaction.redact). Raises ValueError for an unknown kind.
    """
    now = database_clock.now()
    return Notification.objects.create(
        project_id=project_id,
        run_id=run_id,
        kind=Kind(kind).value,
        title=one_line(title, MAX_TITLE) or Kind(kind).label,
        text=_lines(text, MAX_TEXT),
        created_at=now,
        email_due_at=now,
    )


def inbox(project_id: UUID, user_id: int | None) -> QuerySet[Any]:
    """Return the notifications, newest first, annotated with `is_read` for this user (False without a user)."""
    return Notification.objects.filter(project=project_id).order_by("-pk").annotate(is_read=_is_read(user_id))


def unread_count(project_id: UUID, user_id: int) -> int:
    """Return the number of unread notifications among the newest, at most MAX_COUNT + 1. One query."""
    project_param = Project._meta.pk.get_db_prep_value(project_id, connection)
    with connection.cursor() as cursor:
        cursor.execute(_UNREAD, [project_param, MAX_SEARCHED, user_id])
        count: int = cursor.fetchone()[0]
    return min(count, MAX_COUNT + 1)


def mark_read(project_id: UUID, user_id: int, ids: Iterable[UUID]) -> int:
    """Mark these notifications of the project as read and return how many were unread."""
    return _mark(project_id, user_id, pk__in=list(ids))


def mark_all_read(project_id: UUID, user_id: int, *, up_to: UUID) -> int:
    """Mark all notifications up to `up_to` as read and return how many were unread."""
    return _mark(project_id, user_id, pk__lte=up_to)


def _mark(project_id: UUID, user_id: int, **condition: Any) -> int:
    """Mark the notifications that meet a condition as read, in batches, and return how many were unread."""
    unread = Notification.objects.filter(~_is_read(user_id), project=project_id, **condition).order_by("pk")
    count = 0
    while ids := list(unread.values_list("pk", flat=True)[:BATCH_SIZE]):
        with transaction.atomic():
            count += _mark_batch(project_id, ids, user_id)
    return count


def _mark_batch(project_id: UUID, ids: list[UUID], user_id: int) -> int:
    """Store that the user has read these notifications, and return how many of them still exist."""
    now = database_clock.now()
    # Locked, so that none of them is deleted at the same time.
    locked = Notification.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk")
    existing = list(locked.values_list("pk", flat=True))
    NotificationReceipt.objects.bulk_create(
        (
            NotificationReceipt(project_id=project_id, notification_id=pk, user_id=user_id, read_at=now)
            for pk in existing
        ),
        ignore_conflicts=True,
    )
    # A notification that was sent to the user by e-mail already has a receipt.
    NotificationReceipt.objects.filter(notification__in=existing, user=user_id, read_at=None).update(read_at=now)
    return len(existing)


def _is_read(user_id: int | None) -> Exists:
    """Return the SQL condition that the user has read a notification."""
    receipts = NotificationReceipt.objects.filter(notification=OuterRef("pk"), user=user_id, read_at__isnull=False)
    return Exists(receipts)


def count_of_runs(run_ids: Iterable[UUID]) -> int:
    """Return the number of notifications of these runs."""
    return Notification.objects.filter(run_id__in=list(run_ids)).count()


def forget_runs(run_ids: Iterable[UUID]) -> Counter[UUID]:
    """Delete the notifications of runs that are being deleted, and return their number by run."""
    with transaction.atomic():
        # Locked, so that no receipt is added at the same time.
        locked = Notification.objects.select_for_update().filter(run_id__in=list(run_ids)).order_by("pk")
        pairs = list(locked.values_list("pk", "run_id"))
        _delete([pk for pk, _ in pairs])
    return Counter(run_id for _, run_id in pairs if run_id is not None)


def forget_old(at_most: int = BATCH_SIZE) -> int:
    """Delete at most `at_most` expired notifications, oldest first, and return how many were deleted."""
    with transaction.atomic():
        expired = Notification.objects.filter(created_at__lt=database_clock.now() - RETENTION).order_by("created_at")
        ids = list(expired.select_for_update(skip_locked=True).values_list("pk", flat=True)[:at_most])
        return _delete(ids)


def _delete(ids: list[UUID]) -> int:
    """Delete notifications with their receipts, and return their number."""
    if not ids:
        return 0
    NotificationReceipt.objects.filter(notification__in=ids).delete()
    Notification.objects.filter(pk__in=ids).delete()
    return len(ids)


def _lines(text: str, limit: int) -> str:
    """Return a text of several lines without other control characters, truncated."""
    printable = "".join(each if each in "\n\t" or unicodedata.category(each) not in REFUSED else " " for each in text)
    return truncate(printable.strip(), limit)
