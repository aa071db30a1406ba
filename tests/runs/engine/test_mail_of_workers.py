"""Workers send notifications by e-mail beside their runs, on a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User

from agentops.projects.access import SYSTEM
from agentops.projects.memberships import add_member
from agentops.projects.models import Notification, Project, Role
from agentops.projects.notifications import notify
from runs.models import AgentRun
from runs.statuses import RunStatus
from runs.worker import housekeeping
from runs.worker.worker import Worker
from tests.support.accounts import verify_address
from tests.support.factories import make_agent, make_project, make_run
from tests.support.waiting import eventually
from tests.support.web.mail_server import mail_server

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE_S = 30.0


@pytest.fixture
def project(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(housekeeping, "MAIL_S", 0.05)
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
def working() -> Iterator[Worker]:
    worker = Worker()
    worker.start_sweeping()
    try:
        yield worker
    finally:
        worker.close(PATIENCE_S)


@contextmanager
def mute_server() -> Iterator[tuple[int, threading.Event, Callable[[], None]]]:
    """Takes a connection and says nothing at all; its port, whether somebody has come, and how it hangs up."""
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


def comes(about: Callable[[], bool]) -> bool:
    """Whether it comes about within our patience."""
    waited = threading.Event()
    return any(about() or waited.wait(0.05) for _ in range(int(PATIENCE_S / 0.05)))


def test_a_worker_sends_what_is_due(project: Project, settings: Any) -> None:
    with mail_server() as inbox, working():
        settings.EMAIL_PORT = inbox.port
        found = notify(project.pk, kind="escalated", title="Escalated: it")

        assert comes(lambda: Notification.objects.filter(pk=found.pk, emailed_at__isnull=False).exists())
    assert inbox.recipients == ["ann@people.test"]


def test_a_mail_server_that_hangs_slows_no_run(project: Project, settings: Any) -> None:
    with mute_server() as (port, came, hang_up):
        settings.EMAIL_PORT = port
        found = notify(project.pk, kind="escalated", title="Escalated: it")
        with working():
            assert came.wait(PATIENCE_S)
            run = make_run(make_agent(project))

            assert comes(lambda: AgentRun.objects.get(pk=run.pk).state is RunStatus.COMPLETED)
            found.refresh_from_db()
            assert found.emailed_at is None
            assert found.email_attempts == 1
            hang_up()  # or the worker would wait for its mail until it is out of patience


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_without_a_mail_server_nobody_looks(project: Project, settings: Any) -> None:
    settings.AGENTOPS_EMAIL = False
    with working():
        eventually(lambda: "export" in thread_names(), why="all threads are started")
        assert "mail" not in thread_names()
    settings.AGENTOPS_EMAIL = True
    with mail_server(), working():
        eventually(lambda: "mail" in thread_names(), why="mail is sent by a thread")
