"""Notifications: created in the transaction of the event they report, read by each user separately, deleted later."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.utils import timezone

from agentops.accounts import mailing, notifications
from agentops.accounts.access import SYSTEM
from agentops.accounts.inbox_pages import PAGE_SIZE
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Notification, NotificationReceipt, Project, Role
from agentops.accounts.notifications import MAX_COUNT, MAX_SEARCHED, MAX_TEXT, MAX_TITLE, RETENTION, notify
from tests.support.factories import make_person, make_project, verify_address

INBOX = "/p/alpha/notifications"
HOSTILE = "<img src=x onerror=alert(1)>\"'{{ 7|add:7 }}</li>"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def ann(project: Project) -> User:
    return make_person(project, Role.VIEWER)


def signed_in(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def told(project: Project, title: str = "Escalated: Fix it", **options: Any) -> Notification:
    return notify(project.pk, kind="escalated", title=title, **options)


def titles(html: str) -> list[str]:
    return re.findall(r'notice-title">(?:<a [^>]+>)?<bdi>([^<]*)</bdi>', html)


def unread(html: str) -> int:
    return len(re.findall(r'class="notice unread"', html))


def count_in_the_inbox(html: str) -> int:
    """Return the number of unread notifications that the inbox shows next to the link to this page."""
    found = re.search(r'/notifications">Notifications <span class="nav-count">(\d+)', html)
    return int(found[1]) if found else 0


# --- Creating a notification ------------------------------------------------------------------------------------


def test_notification_is_created_in_the_transaction_of_its_event(project: Project) -> None:
    run_id = uuid4()
    with transaction.atomic():
        told(project, run_id=run_id)
        transaction.set_rollback(True)
    assert not Notification.objects.exists()

    found = told(project, text="Why", run_id=run_id)
    stored = Notification.objects.get(pk=found.pk)
    assert (stored.kind, stored.title, stored.text, stored.run_id) == ("escalated", "Escalated: Fix it", "Why", run_id)
    assert stored.email_due_at is not None


def test_an_unknown_kind_is_refused(project: Project) -> None:
    with pytest.raises(ValueError, match="gossip"):
        notify(project.pk, kind="gossip", title="x")


def test_title_and_text_are_bounded_and_free_of_control_characters(project: Project) -> None:
    found = told(project, "a\r\nb\x00c\ud800" + "x" * 10_000, text="l1\n\tl2\x00\x1b\ud800\u2028" + "y" * 10_000)

    stored = Notification.objects.get(pk=found.pk)
    assert stored.title.startswith("a b c xxx")
    assert (len(stored.title), stored.title[-1]) == (MAX_TITLE, "…")
    assert stored.text.startswith("l1\n\tl2   ")
    assert (len(stored.text), stored.text[-1]) == (MAX_TEXT, "…")


def test_a_notification_without_a_title_shows_its_kind(project: Project) -> None:
    assert told(project, " \n ").title == "Escalated"


# --- The page ---------------------------------------------------------------------------------------------------


def test_the_page_shows_the_newest_first_and_links_to_runs(project: Project, ann: User) -> None:
    run_id = uuid4()
    told(project, "older", run_id=run_id)
    told(project, "newer", text="Line one.\nLine two.")
    html = signed_in(ann).get(INBOX).content.decode()

    assert titles(html) == ["newer", "older"]
    assert f'href="/runs/{run_id}"' in html
    assert "Line one.\nLine two." in html
    assert unread(html) == 2
    assert count_in_the_inbox(signed_in(ann).get("/p/alpha/approvals").content.decode()) == 2


def test_an_empty_inbox_shows_a_message(project: Project, ann: User) -> None:
    html = signed_in(ann).get(INBOX).content.decode()

    assert "No notifications" in html
    assert "Mark all" not in html


def test_hostile_text_is_escaped(project: Project, ann: User) -> None:
    told(project, HOSTILE, text=HOSTILE)
    html = signed_in(ann).get(INBOX).content.decode()

    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert "{{ 7|add:7 }}" in html


def test_read_marks_belong_to_one_user(project: Project, ann: User) -> None:
    bob = make_person(project, Role.OPERATOR)
    one, two = told(project, "one"), told(project, "two")
    answer = signed_in(ann).post(f"{INBOX}/read", {"id": str(one.pk)})

    assert (answer.status_code, answer["Location"]) == (303, INBOX)
    assert notifications.unread_count(project.pk, ann.pk) == 1
    assert notifications.unread_count(project.pk, bob.pk) == 2
    seen = {row.pk: row.is_read for row in notifications.inbox(project.pk, ann.pk)}
    assert seen == {one.pk: True, two.pk: False}
    # Marking it again changes nothing.
    first = NotificationReceipt.objects.get(user=ann).read_at
    signed_in(ann).post(f"{INBOX}/read", {"id": str(one.pk)})
    assert NotificationReceipt.objects.get(user=ann).read_at == first


def test_mark_all_marks_the_notifications_of_the_page(project: Project, ann: User) -> None:
    for number in range(3):
        told(project, str(number))
    client = signed_in(ann)
    html = client.get(INBOX).content.decode()
    up_to = re.search(r'name="up_to" value="([^"]+)"', html)
    assert up_to is not None
    told(project, "came meanwhile")

    assert client.post(f"{INBOX}/read", {"up_to": up_to[1]}).status_code == 303
    html = client.get(INBOX).content.decode()

    assert "Marked 3 as read." in html
    assert unread(html) == 1


def test_pages_use_a_cursor(project: Project, ann: User) -> None:
    for number in range(PAGE_SIZE + 3):
        told(project, f"n{number}")
    client = signed_in(ann)
    first = client.get(INBOX).content.decode()
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older is not None
    told(project, "came meanwhile")

    second = client.get(INBOX + older[1]).content.decode()

    assert titles(first) == [f"n{number}" for number in range(PAGE_SIZE + 2, 2, -1)]
    assert titles(second) == ["n2", "n1", "n0"]
    assert 'rel="next"' not in second
    read = client.post(f"{INBOX}/read", {"id": older[1].partition("=")[2], "before": older[1].partition("=")[2]})
    assert read["Location"] == INBOX + older[1]


@pytest.mark.parametrize("query", ["before=x", "before=%00", "before=../../runs"])
def test_an_invalid_cursor_is_refused(query: str, project: Project, ann: User) -> None:
    assert signed_in(ann).get(f"{INBOX}?{query}").status_code == 400


@pytest.mark.parametrize("form", [{}, {"id": "x"}, {"id": str(UUID(int=1)), "up_to": str(UUID(int=1))}])
def test_an_empty_form_is_refused(form: dict[str, str], project: Project, ann: User) -> None:
    assert signed_in(ann).post(f"{INBOX}/read", form).status_code == 400


def test_a_foreign_notification_cannot_be_read_or_marked(project: Project, ann: User) -> None:
    """The answer is the same as for an unknown ID."""
    other = make_project("beta")
    theirs = told(other, "secret")
    client = signed_in(ann)
    answers = [client.post(f"{INBOX}/read", {name: str(theirs.pk)}).status_code for name in ("id", "up_to")]

    assert answers == [303, 303]
    assert not NotificationReceipt.objects.exists()
    assert "secret" not in client.get(INBOX).content.decode()
    assert client.get("/p/beta/notifications").status_code == 404
    assert client.post("/p/beta/notifications/read", {"id": str(theirs.pk)}).status_code == 404


@pytest.mark.parametrize(
    ("role", "email", "said"),
    [
        (Role.VIEWER, "a@b.test", "Operators and admins of the project also receive notifications by e-mail."),
        (Role.OPERATOR, "a@b.test", "You also receive notifications by e-mail"),
        (Role.OPERATOR, "unproven@b.test", "Verify your address"),
        (Role.ADMIN, "", "Your account has no e-mail address"),
    ],
    ids=["viewer", "operator", "not verified", "no address"],
)
def test_the_page_shows_who_gets_mail(role: Role, email: str, said: str, project: Project, settings: Any) -> None:
    settings.AGENTOPS_EMAIL = True
    person = make_person(project, role)
    person.email = email
    person.save()
    if email == "a@b.test":
        verify_address(person)

    assert said in signed_in(person).get(INBOX).content.decode()


def test_the_page_promises_no_mail_to_a_superuser_who_is_not_a_member(project: Project, settings: Any) -> None:
    """Mail about a project goes to its members, and not to a superuser who is no member."""
    settings.AGENTOPS_EMAIL = True
    root = make_person()
    root.is_superuser, root.email = True, "root@b.test"
    root.save()
    verify_address(root)
    notification = told(project)

    page = signed_in(root).get(INBOX).content.decode()

    assert "You also receive notifications" not in page
    assert "Operators and admins of the project also receive notifications by e-mail." in page
    assert root not in mailing.recipients(notification)
    add_member(project, root, Role.OPERATOR, actor=SYSTEM)
    assert "You also receive notifications" in signed_in(root).get(INBOX).content.decode()
    assert root in mailing.recipients(notification)


def test_the_page_shows_that_no_mail_server_is_configured(project: Project, ann: User) -> None:
    assert "no mail server is configured" in signed_in(ann).get(INBOX).content.decode()


# --- Queries ------------------------------------------------------------------------------------------------------


def test_the_page_and_the_bell_take_the_same_queries_with_many(
    project: Project, ann: User, django_assert_num_queries: Any
) -> None:
    client = signed_in(ann)
    told(project)
    # Session, user, project and its visibility, the menu, the rows, the mail recipients, the bell.
    with django_assert_num_queries(7):
        client.get(INBOX)
    for number in range(PAGE_SIZE * 2):
        told(project, str(number))
    with django_assert_num_queries(7):
        client.get(INBOX)
    with django_assert_num_queries(1):
        notifications.unread_count(project.pk, ann.pk)


def test_the_unread_count_has_a_maximum(project: Project, ann: User) -> None:
    first = told(project, "first")
    Notification.objects.bulk_create(
        Notification(project=project, kind="escalated", title="x", created_at=timezone.now())
        for _ in range(MAX_SEARCHED)
    )

    assert notifications.unread_count(project.pk, ann.pk) == MAX_COUNT + 1
    newest = notifications.inbox(project.pk, ann.pk).first()
    assert newest is not None
    assert notifications.mark_all_read(project.pk, ann.pk, up_to=newest.pk) == MAX_SEARCHED + 1
    assert notifications.unread_count(project.pk, ann.pk) == 0
    assert NotificationReceipt.objects.filter(notification=first, user=ann).exists()


# --- Deletion -----------------------------------------------------------------------------------------------------


def test_old_notifications_are_deleted_with_their_receipts(project: Project, ann: User) -> None:
    old, new = told(project, "old"), told(project, "new")
    notifications.mark_read(project.pk, ann.pk, [old.pk, new.pk])
    Notification.objects.filter(pk=old.pk).update(created_at=timezone.now() - RETENTION - timedelta(minutes=1))

    assert notifications.forget_old() == 1
    assert notifications.forget_old() == 0
    assert list(Notification.objects.all()) == [new]
    assert NotificationReceipt.objects.get().notification_id == new.pk


def test_deleting_a_run_deletes_its_notifications(project: Project, ann: User) -> None:
    run_id, other = uuid4(), uuid4()
    gone = [told(project, run_id=run_id), told(project, run_id=run_id)]
    stays = [told(project, run_id=other), told(project)]
    notifications.mark_read(project.pk, ann.pk, [each.pk for each in (*gone, *stays)])

    assert notifications.count_of_runs([run_id]) == 2
    assert notifications.forget_runs([run_id]) == {run_id: 2}

    assert set(Notification.objects.all()) == set(stays)
    assert NotificationReceipt.objects.count() == 2


def test_deleting_a_project_deletes_its_notifications(project: Project, ann: User) -> None:
    other = make_project("beta")
    told(other)
    notifications.mark_read(project.pk, ann.pk, [told(project).pk])
    project.memberships.all().delete()
    project.delete()

    assert Notification.objects.get().project == other
    assert not NotificationReceipt.objects.exists()
