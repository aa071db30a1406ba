"""News of a project: written with what it tells of, read by each member for themselves, forgotten in time.

Mail is sent by mailing.py, afterwards and by a worker: telling waits for nobody.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from agentops.projects.models import Notification, NotificationReceipt
from agentops.projects.names import REFUSED, clipped, one_line

Kind = Notification.Kind

MAX_TITLE = 200
MAX_TEXT = 2000
#: What was news is none after this time; the run's own timeline keeps what happened.
KEPT_FOR = timedelta(days=90)
#: Rows of one transaction.
AT_ONCE = 500
#: The bell counts among the newest of this number, so that it costs the same however many there are.
LOOK = 200
#: Beyond it the exact number helps nobody.
MAX_COUNT = 99


def notify(project_id: UUID, *, kind: str, title: str, text: str = "", run_id: UUID | None = None) -> Notification:
    """Tell the members of a project, in the caller's transaction: with what happened, or not at all.

    Title and text are bounded and freed of what breaks a line or a header; whatever somebody else said in them must
    have been redacted before (timeline.redaction.redact). Raises ValueError for an unknown kind.
    """
    now = timezone.now()
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
    """The project's notifications, newest first, each with `is_read` by this person (a key is none, and has read
    nothing)."""
    return Notification.objects.filter(project=project_id).order_by("-pk").annotate(is_read=_read_by(user_id))


def unread_count(project_id: UUID, user_id: int) -> int:
    """How many of the newest are unread; one more than MAX_COUNT stands for all beyond. One query."""
    newest = Notification.objects.filter(project=project_id).order_by("-pk").values("pk")[:LOOK]
    unread = Notification.objects.filter(~_read_by(user_id), pk__in=newest)
    return unread[: MAX_COUNT + 1].count()


def mark_read(project_id: UUID, user_id: int, ids: Iterable[UUID]) -> int:
    """Note that they have read these; ids of another project's are no ids. How many that was news to."""
    return _mark(project_id, user_id, pk__in=list(ids))


def mark_all_read(project_id: UUID, user_id: int, *, up_to: UUID) -> int:
    """Also everything older than `up_to`, the newest that they were shown: what came meanwhile they have not seen."""
    return _mark(project_id, user_id, pk__lte=up_to)


def _mark(project_id: UUID, user_id: int, **which: Any) -> int:
    unread = Notification.objects.filter(~_read_by(user_id), project=project_id, **which).order_by("pk")
    marked = 0
    while some := list(unread.values_list("pk", flat=True)[:AT_ONCE]):
        with transaction.atomic():
            marked += _receive(project_id, some, user_id)
    return marked


def _receive(project_id: UUID, ids: list[UUID], user_id: int) -> int:
    now = timezone.now()
    # Locked: what is being forgotten is waited for, and is then not among them.
    there = Notification.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk")
    found = list(there.values_list("pk", flat=True))
    NotificationReceipt.objects.bulk_create(
        (NotificationReceipt(project_id=project_id, notification_id=pk, user_id=user_id, read_at=now) for pk in found),
        ignore_conflicts=True,
    )
    # One that was sent by e-mail has a receipt already.
    NotificationReceipt.objects.filter(notification__in=found, user=user_id, read_at=None).update(read_at=now)
    return len(found)


def _read_by(user_id: int | None) -> Exists:
    read = NotificationReceipt.objects.filter(notification=OuterRef("pk"), user=user_id, read_at__isnull=False)
    return Exists(read)


def count_of_runs(run_ids: Iterable[UUID]) -> int:
    return Notification.objects.filter(run_id__in=list(run_ids)).count()


def forget_runs(run_ids: Iterable[UUID]) -> Counter[UUID]:
    """What was told of runs that are removed says what somebody said in them, so it goes too: run → how many."""
    with transaction.atomic():
        # Locked before their receipts are looked for: nobody adds one meanwhile.
        told = Notification.objects.select_for_update().filter(run_id__in=list(run_ids)).order_by("pk")
        found = list(told.values_list("pk", "run_id"))
        _delete([pk for pk, _ in found])
    return Counter(run_id for _, run_id in found if run_id is not None)


def forget_old(at_most: int = AT_ONCE) -> int:
    """Delete what is no news any more, the oldest first; how many it were. Call it until there are none."""
    with transaction.atomic():
        over = Notification.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).order_by("created_at")
        chosen = list(over.select_for_update(skip_locked=True).values_list("pk", flat=True)[:at_most])
        return _delete(chosen)


def _delete(ids: list[UUID]) -> int:
    if not ids:
        return 0
    NotificationReceipt.objects.filter(notification__in=ids).delete()
    Notification.objects.filter(pk__in=ids).delete()
    return len(ids)


def _lines(text: str, limit: int) -> str:
    kept = "".join(each if each in "\n\t" or unicodedata.category(each) not in REFUSED else " " for each in text)
    return clipped(kept.strip(), limit)
