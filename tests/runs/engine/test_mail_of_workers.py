"""A Celery task sends notifications by e-mail, independently of runs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Notification, Project, Role
from agentops.accounts.notifications import notify
from runs.statuses import RunStatus
from runs.worker import upkeep
from tests.support.factories import drive, make_agent, make_project, make_run, verify_address
from tests.support.loopback_servers import mail_server

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE_S = 30.0


@pytest.fixture
def project(settings: Any) -> Project:
    settings.AGENTOPS_SWEEP_S = 0.1
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_TIMEOUT = "127.0.0.1", 20
    settings.DEFAULT_FROM_EMAIL, settings.AGENTOPS_BASE_URL = "robot@ops.test", "https://ops.test"
    settings.AGENTOPS_EMAIL = True
    project = make_project()
    ann = verify_address(User.objects.create(username="ann", email="ann@people.test"))
    add_member(project, ann, Role.OPERATOR, actor=SYSTEM)
    return project


@contextmanager
def mute_server() -> Iterator[tuple[int, threading.Event, Callable[[], None]]]:
    """Accept a connection and never respond; yield the port, an event set on connection, and a hang-up function."""
    came = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def take() -> None:
            held.append(listening.accept()[0])
            came.set()

        def hang_up() -> None:
            for each in held:
                each.close()

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield listening.getsockname()[1], came, hang_up
        finally:
            thread.join(PATIENCE_S)
            hang_up()


def test_the_task_sends_due_notifications(project: Project, settings: Any) -> None:
    with mail_server() as inbox:
        settings.EMAIL_PORT = inbox.port
        found = notify(project.pk, kind="escalated", title="Escalated: it")
        upkeep.send_mail()

    assert Notification.objects.get(pk=found.pk).emailed_at is not None
    assert inbox.recipients == ["ann@people.test"]


def test_a_hanging_mail_server_delays_no_run(project: Project, settings: Any) -> None:
    with mute_server() as (port, came, hang_up):
        settings.EMAIL_PORT = port
        found = notify(project.pk, kind="escalated", title="Escalated: it")
        sending = threading.Thread(target=upkeep.send_mail)
        sending.start()
        assert came.wait(PATIENCE_S)
        assert drive(make_run(make_agent(project))).state is RunStatus.COMPLETED
        found.refresh_from_db()
        assert found.emailed_at is None
        assert found.email_attempts == 1
        hang_up()
        sending.join(PATIENCE_S)
    assert not sending.is_alive()


def test_nothing_is_sent_without_a_mail_server(project: Project, settings: Any) -> None:
    settings.AGENTOPS_EMAIL = False
    found = notify(project.pk, kind="escalated", title="Escalated: it")

    upkeep.send_mail()

    found.refresh_from_db()
    assert (found.emailed_at, found.email_attempts) == (None, 0)
