"""Alerts about failed flow runs and about stalled ones, which no worker advances. Each is announced once."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Notification, Project, Role
from runs.alerts import alert_rule_changes
from runs.alerts.alert_texts import slack_body, webhook_body
from runs.flows import runner
from runs.models import Alert, AlertFinding, AlertMessage
from tests.support.factories import make_person
from tests.support.flows import CONSTANT, make_failed_flow_run, make_flow_run, make_flow_run_with_failed_node
from tests.support.project_rows import AddRule, Clock
from timeline.models import Log

pytestmark = pytest.mark.usefixtures("no_hints")


def titles() -> list[str]:
    return list(Notification.objects.order_by("pk").values_list("title", flat=True))


def found() -> list[tuple[str, str, bool]]:
    """Return the findings: the alert's group, the detail, and whether it belongs to a flow run."""
    rows = AlertFinding.objects.order_by("alert__agent", "pk").select_related("alert")
    return [(each.alert.agent, each.detail, each.flow_run_id is not None) for each in rows]


def test_failed_flows_are_announced_together_and_once(project: Project, rule: AddRule, clock: Clock) -> None:
    rule("run_failed")
    make_failed_flow_run(project)
    make_failed_flow_run(project)
    make_failed_flow_run(project, "other")
    clock.evaluate()
    clock.evaluate(seconds=16)

    assert sorted(titles()) == ["2 runs of flow sample failed", "Run of flow other failed"]
    assert {detail for _, detail, _ in found()} == {"loop exceeded"}
    assert clock.evaluate(seconds=20) == 0
    clock.evaluate(minutes=11)
    assert not Alert.objects.filter(closed_at=None).exists()
    assert len(titles()) == 2


def test_the_message_about_a_flow_run_links_to_its_page(
    project: Project, rule: AddRule, clock: Clock, client: Client
) -> None:
    rule("run_failed", webhook_url="https://ops.example.com/hook")
    flow_run = make_failed_flow_run(project)
    clock.evaluate()
    clock.evaluate(seconds=16)

    [told] = Notification.objects.all()
    assert (told.title, told.run_id) == ("Run of flow sample failed", flow_run.pk)
    assert "exceeded 2 iterations" in told.text
    message = AlertMessage.objects.get()
    body = json.loads(webhook_body(message))["data"]
    [listed] = body["runs"]
    assert (body["agent_id"], listed["run_id"], listed["title"]) == ("flow sample", str(flow_run.pk), "Never enough")
    assert (listed["status"], listed["url"]) == ("failed", f"/flow-runs/{flow_run.pk}")
    assert listed["url"] in slack_body(message)

    client.force_login(make_person(project, Role.VIEWER))
    page = client.get("/p/alpha/alerts").content.decode()
    assert f'href="/flow-runs/{flow_run.pk}"' in page
    assert "Never enough" in page
    # The notification links to a run page, which redirects to the flow run.
    answer = client.get(f"/runs/{flow_run.pk}")
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/flow-runs/{flow_run.pk}")
    listed_alert = client.get("/api/projects/alpha/alerts").json()["results"][0]
    assert listed_alert["findings"][0]["flow_run_id"] == str(flow_run.pk)
    assert listed_alert["findings"][0]["run_id"] is None


def test_a_flow_that_fails_with_a_run_is_announced_only_as_that_run(
    project: Project, rule: AddRule, clock: Clock
) -> None:
    rule("run_failed")
    _, run = make_flow_run_with_failed_node(project)
    clock.evaluate()
    clock.evaluate(seconds=16)
    assert titles() == ["Run of breaker failed"]
    assert list(AlertFinding.objects.values_list("run_id", "flow_run_id")) == [(run.pk, None)]


def test_rules_for_one_agent_or_label_ignore_flows_and_a_rule_for_the_flow_does_not(
    project: Project, rule: AddRule, clock: Clock
) -> None:
    rule("run_failed", name="agent", agent="sample")
    rule("run_failed", name="label", label="nightly")
    mine = rule("run_failed", name="flow", agent="flow sample")
    make_failed_flow_run(project)
    make_failed_flow_run(project, "other")
    clock.evaluate()
    assert list(AlertFinding.objects.values_list("rule_id", flat=True)) == [mine.pk]

    alert_rule_changes.mute(project, 60, by="user:oscar", agent="flow sample")
    clock.evaluate(seconds=16)
    assert titles() == []


def test_a_flow_run_without_progress_is_stalled_until_it_advances(
    project: Project, rule: AddRule, clock: Clock
) -> None:
    rule("run_stalled", minutes=15, announces_end=True)
    flow_run = make_flow_run(CONSTANT, project)
    assert clock.evaluate() == 0
    Log.objects.filter(pk=flow_run.pk).update(last_event_at=timezone.now() - timedelta(minutes=20))
    clock.evaluate()
    clock.evaluate(seconds=16)
    assert found() == [("flow sample", "in the queue for 20 min", True)]
    assert titles() == ["Run of flow sample has stalled"]

    runner.advance(flow_run.pk)
    clock.evaluate(seconds=10)
    assert titles()[1:] == ["Over: Run of flow sample has stalled"]
    assert not Alert.objects.filter(closed_at=None).exists()


def test_a_flow_run_with_working_nodes_is_not_stalled(project: Project, rule: AddRule, clock: Clock) -> None:
    """Only the node's run waits for a worker, and it has a separate finding."""
    rule("run_stalled", minutes=15)
    nodes = [{"id": "ask", "type": "human", "question": "Ready?"}]
    flow_run = make_flow_run({"flow_id": "sample", "nodes": nodes}, project)
    runner.advance(flow_run.pk)
    Log.objects.update(last_event_at=timezone.now() - timedelta(minutes=20))
    clock.evaluate()
    assert [is_of_flow for _, _, is_of_flow in found()] == [False]
