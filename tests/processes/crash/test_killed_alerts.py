"""Test that alerts reach mail server and webhook exactly once, although a worker is killed while it delivers them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import F

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Notification, Project, Role
from runs.alerts.alert_rule_changes import add_rule
from runs.models import AlertDelivery
from runs.statuses import RunStatus
from tests.support.databases import reconnect
from tests.support.factories import verify_address
from tests.support.loopback_servers import Server, answer, mail_server, serving
from tests.support.project_rows import external, failed
from tests.support.stage import Stage
from tests.support.timing import eventually
from timeline.models import Log

KINDS = ("run_failed", "run_stalled", "run_waiting")


def prepared(hook: Server) -> Project:
    """Create a project with an operator, an alert rule of each kind, and an approval rule."""
    reconnect()
    rules = [{"tools": "ledger_once", "action": "ask"}]
    project = Project.objects.create(slug="crash", name="Crash", settings={"approvals": rules})
    ann = verify_address(User.objects.create(username="ann", email="ann@people.test"))
    add_member(project, ann, Role.OPERATOR, actor=SYSTEM)
    for kind in KINDS:
        url = f"http://127.0.0.1:{hook.port}/"
        add_rule(project, {"name": kind, "kind": kind, "webhook_url": url, "group_minutes": 1}, by="test")
    return project


def rules_of(hook: Server) -> list[str]:
    """Return the kinds of the rules in the webhook requests. Request IDs differ."""
    bodies = [json.loads(raw.partition(b"\r\n\r\n")[2]) for raw in hook.requests]
    return sorted(body["data"]["rule"]["kind"] for body in bodies)


def test_each_alert_is_delivered_once(stage: Stage, settings: Any) -> None:
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    with mail_server() as inbox, serving(answer(b"ok")) as hook:
        env = {
            "EMAIL_URL": f"smtp://127.0.0.1:{inbox.port}",
            "DEFAULT_FROM_EMAIL": "robot@ops.test",
            "AGENTOPS_BASE_URL": "http://127.0.0.1:8000",
            "AGENTOPS_ALLOW_PRIVATE_SINKS": "true",
            "AGENTOPS_ALERTS_S": "0.5",
            "SECRET_KEY": settings.SECRET_KEY,
        }
        project = prepared(hook)
        failed(project, "failed")
        stalled = external(project, "stalled")
        Log.objects.filter(pk=stalled.pk).update(last_event_at=F("last_event_at") - timedelta(hours=1))
        waiting = stage.run([["ledger_once"]])
        stage.worker(chaos="alert.in_transaction", **env).killed()
        for _ in range(2):
            stage.worker(**env)
        stage.reaches(waiting, RunStatus.WAITING)
        eventually(lambda: len(hook.requests) >= 3 and len(inbox.mails) >= 3, why="all are announced")
        # One more alert, of another agent, comes after further evaluations. No earlier alert is delivered again.
        reconnect()
        failed(project, "another", agent="other")
        eventually(lambda: len(hook.requests) >= 4 and len(inbox.mails) >= 4, why="the last comes too")

    assert rules_of(hook) == ["run_failed", *sorted(KINDS)]
    assert inbox.recipients == ["ann@people.test"] * 4
    subjects = sorted(str(mail["Subject"]).removeprefix("[agentops] crash: ") for mail in inbox.of("ann@people.test"))
    assert subjects[1:] == ["Run of coder failed", "Run of coder has stalled", "Run of other failed"]
    assert "ledger_once" in subjects[0]
    assert AlertDelivery.objects.filter(state="sent").count() == Notification.objects.count() == 4
