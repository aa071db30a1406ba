"""Notifications by e-mail with a real mail server: recipients, retries, and no duplicate mails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from agentops.accounts import mailing, notifications
from agentops.accounts.access import SYSTEM
from agentops.accounts.mailing import CLAIMED_FOR, MAX_ATTEMPTS, MAX_SUBJECT, send_due, take_due
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Notification, Project, Role
from agentops.accounts.notifications import notify
from tests.support.factories import make_project, verify_address
from tests.support.loopback_servers import Inbox, mail_server


@pytest.fixture
def server(settings: Any) -> Iterator[Inbox]:
    with mail_server() as inbox:
        configure(settings, inbox.port)
        yield inbox


def configure(settings: Any, port: int) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_TIMEOUT = "127.0.0.1", port, 10
    settings.DEFAULT_FROM_EMAIL = "agentops <robot@ops.test>"
    settings.AGENTOPS_BASE_URL = "https://ops.test"
    settings.AGENTOPS_EMAIL = True


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


def member(project: Project, name: str, role: Role = Role.OPERATOR, **fields: Any) -> User:
    user = User.objects.create(username=name, **({"email": f"{name}@people.test"} | fields))
    add_member(project, user, role, actor=SYSTEM)
    return verify_address(user) if user.email else user


def told(project: Project, title: str = "Escalated: Fix it", **options: Any) -> Notification:
    return notify(project.pk, kind="escalated", title=title, **options)


def due_now(found: Notification) -> None:
    """Set the time of the next attempt to now."""
    Notification.objects.filter(pk=found.pk).update(email_due_at=timezone.now())


# --- Recipients -------------------------------------------------------------------------------------------------


def test_recipients_are_operators_and_admins_with_a_verified_address(project: Project, server: Inbox) -> None:
    member(project, "ann", Role.ADMIN)
    member(project, "bob", Role.OPERATOR)
    member(project, "viv", Role.VIEWER)
    member(project, "off", Role.ADMIN, is_active=False)
    member(project, "mute", Role.ADMIN, email="")
    # Neither an unverified address nor an address that was changed since its verification.
    add_member(project, User.objects.create(username="eve", email="eve@people.test"), Role.ADMIN, actor=SYSTEM)
    moved = member(project, "moved", Role.ADMIN)
    User.objects.filter(pk=moved.pk).update(email="new@people.test")
    member(make_project("beta"), "foreigner", Role.ADMIN)
    User.objects.create_superuser("boss", email="boss@people.test")
    run_id = uuid4()
    found = told(project, text="The gate said no.\nTwice.", run_id=run_id)

    assert send_due() == 1

    assert server.recipients == ["ann@people.test", "bob@people.test"]
    [mail] = server.of("ann@people.test")
    assert (mail["To"], mail["From"]) == ("ann@people.test", "agentops <robot@ops.test>")
    assert mail["Subject"] == "[agentops] alpha: Escalated: Fix it"
    assert mail["Auto-Submitted"] == "auto-generated"
    body = mail.get_content().replace("\r\n", "\n")
    for part in ("Fix it", "The gate said no.\nTwice.", f"https://ops.test/runs/{run_id}", "/p/alpha/notifications"):
        assert part in body
    found.refresh_from_db()
    assert found.emailed_at is not None
    assert (found.email_due_at, found.email_attempts, found.email_error) == (None, 1, "")
    assert send_due() == 0


def test_notification_without_recipients_is_not_retried(project: Project, server: Inbox) -> None:
    found = told(project)
    send_due()

    found.refresh_from_db()
    assert found.emailed_at is not None
    assert server.connections == 0


def test_a_notification_that_was_mailed_is_still_unread(project: Project, server: Inbox) -> None:
    ann = member(project, "ann")
    found = told(project)
    send_due()

    assert notifications.unread_count(project.pk, ann.pk) == 1
    assert notifications.mark_read(project.pk, ann.pk, [found.pk]) == 1
    assert notifications.unread_count(project.pk, ann.pk) == 0


@pytest.mark.parametrize(
    "title",
    [
        "a\r\nBcc: everyone@people.test\r\n\r\nbody",
        "a\nSubject: other",
        "a\x00b\x1b[2J\u2028c\x85d",
        "\ud800 half a pair",
        "Ünïcödé 🚀 " + "long " * 200,
        "",
    ],
    ids=["crlf", "lf", "controls", "surrogate", "long", "empty"],
)
def test_a_title_never_becomes_a_header(title: str, project: Project, server: Inbox) -> None:
    member(project, "ann")
    told(project, title, text=title)
    send_due()

    assert server.recipients == ["ann@people.test"]
    [mail] = server.of("ann@people.test")
    subject = str(mail["Subject"]).strip()  # a long subject begins on a separate line
    assert subject.startswith("[agentops] alpha: ")
    assert len(subject) <= MAX_SUBJECT
    assert "\n" not in subject
    assert len(mail.get_all("Subject", [])) == 1
    assert mail["Bcc"] is None


@pytest.mark.parametrize("address", ["not an address", "a@people.test\nBcc: x@people.test", "two@x.test, b@y.test"])
def test_an_invalid_address_does_not_keep_the_mail_from_others(address: str, project: Project, server: Inbox) -> None:
    broken = member(project, "ann", email=address)
    member(project, "bob")
    found = told(project)
    send_due()

    assert server.recipients == ["bob@people.test"]
    found.refresh_from_db()
    assert (found.emailed_at, found.email_error) == (None, f"user {broken.pk} has no valid e-mail address")
    assert found.email_due_at is not None


# --- Failures ---------------------------------------------------------------------------------------------------


def test_a_server_that_is_down_is_retried_later(project: Project, settings: Any, caplog: Any) -> None:
    with mail_server() as gone:
        pass
    configure(settings, gone.port)
    for name in ("ann", "bob", "cy"):
        member(project, name)
    found = told(project)
    with caplog.at_level(logging.WARNING):
        assert send_due() == 1

    found.refresh_from_db()
    assert found.emailed_at is None
    assert found.email_error.startswith("ConnectionRefusedError")
    assert "people.test" not in caplog.text
    waited = found.email_due_at - timezone.now() if found.email_due_at else timedelta(0)
    assert timedelta(seconds=50) < waited <= timedelta(seconds=60)
    with mail_server() as back:
        configure(settings, back.port)
        assert send_due() == 0  # not due yet
        due_now(found)
        assert send_due() == 1

    assert len(back.mails) == 3
    found.refresh_from_db()
    assert (found.email_attempts, found.email_error) == (2, "")
    assert found.emailed_at is not None


def test_retry_intervals_grow_and_end(project: Project, server: Inbox) -> None:
    server.refused["ann@people.test"] = "550 no such person"
    member(project, "ann")
    found = told(project)
    waits = []
    for _ in range(MAX_ATTEMPTS):
        assert send_due() == 1
        found.refresh_from_db()
        if found.email_due_at is not None:
            waits.append(round((found.email_due_at - timezone.now()).total_seconds() / 60))
            due_now(found)

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (found.email_due_at, found.emailed_at, found.email_attempts) == (None, None, MAX_ATTEMPTS)
    assert "550" in found.email_error
    assert send_due() == 0


def test_retry_skips_recipients_that_have_the_mail(project: Project, server: Inbox) -> None:
    server.refused["bob@people.test"] = "451 later"
    for name in ("ann", "bob", "cy"):
        member(project, name)
    found = told(project)
    send_due()
    assert server.recipients == ["ann@people.test", "cy@people.test"]

    server.refused.clear()
    due_now(found)
    send_due()

    assert server.recipients == ["ann@people.test", "bob@people.test", "cy@people.test"]


def test_a_lost_answer_of_the_server_repeats_one_mail_with_the_same_id(project: Project, server: Inbox) -> None:
    """Delivery is at least once: the server had accepted the mail, but the worker did not learn of it."""
    member(project, "ann")
    server.silent = 1
    found = told(project)
    send_due()
    found.refresh_from_db()
    assert found.emailed_at is None

    due_now(found)
    send_due()

    first, second = server.of("ann@people.test")
    assert first["Message-ID"] == second["Message-ID"]
    assert str(found.pk) in first["Message-ID"]


def test_an_old_notification_is_not_mailed(project: Project, server: Inbox) -> None:
    member(project, "ann")
    found = told(project)
    Notification.objects.filter(pk=found.pk).update(created_at=timezone.now() - timedelta(hours=25))
    send_due()

    found.refresh_from_db()
    assert (server.mails, found.email_due_at, found.emailed_at) == ([], None, None)


def test_a_notification_that_crashes_its_worker_each_time_is_given_up(project: Project, server: Inbox) -> None:
    member(project, "ann")
    found = told(project)
    Notification.objects.filter(pk=found.pk).update(email_attempts=MAX_ATTEMPTS)
    send_due()

    found.refresh_from_db()
    assert (server.mails, found.email_due_at) == ([], None)
    assert found.email_error


# --- Several workers ----------------------------------------------------------------------------------------------


def test_a_claimed_notification_is_skipped_by_other_workers(project: Project, server: Inbox) -> None:
    member(project, "ann")
    told(project)
    taken = take_due(project.pk)
    assert taken is not None

    assert take_due(project.pk) is None
    assert send_due() == 0


def test_a_dead_workers_claim_expires_and_its_late_result_is_ignored(project: Project, server: Inbox) -> None:
    """The first worker hangs or dies; the second sends the mail, and the first one's late result is ignored."""
    member(project, "ann")
    told(project)
    slow = take_due(project.pk)
    assert slow is not None
    assert slow.email_due_at is not None
    Notification.objects.filter(pk=slow.pk).update(email_due_at=timezone.now())

    assert send_due() == 1
    mailing.send(slow, lambda: False)

    assert server.recipients == ["ann@people.test"]


def test_a_stopping_worker_releases_its_claim(project: Project, server: Inbox) -> None:
    member(project, "ann")
    member(project, "bob")
    told(project)
    asked = iter([False, False, True])
    assert send_due(lambda: next(asked, True)) == 1
    assert len(server.mails) == 1

    assert send_due() == 1
    assert server.recipients == ["ann@people.test", "bob@people.test"]


@pytest.mark.django_db(transaction=True)
def test_many_workers_send_each_mail_once(settings: Any) -> None:
    project = make_project("alpha")
    for name in ("ann", "bob"):
        member(project, name)
    for number in range(12):
        told(project, f"Escalated: {number}")
    taken: list[int] = []

    def work() -> None:
        try:
            taken.append(send_due())
        finally:
            connection.close()

    with mail_server() as server:
        configure(settings, server.port)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sum(taken) == 12
    assert len(server.mails) == len({mail["Message-ID"] for _, mail in server.mails}) == 24
    assert not Notification.objects.filter(emailed_at=None).exists()


def test_a_claim_outlasts_one_mail(settings: Any) -> None:
    """Connecting, five exchanges and closing, each limited by the timeout in the settings."""
    assert timedelta(seconds=8 * settings.EMAIL_TIMEOUT) < CLAIMED_FOR
