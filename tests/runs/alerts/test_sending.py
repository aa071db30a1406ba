"""Delivery of alerts to webhooks: signed, retried with the same ID after a failure, and finally given up."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from agentops.accounts import sealing
from agentops.accounts.models import Notification, Project
from agentops.base import database_clock
from runs import chaos
from runs.alerts import evaluation, sending
from runs.alerts.alert_rule_changes import change_rule, send_test
from runs.alerts.rule_definition import channels_of
from runs.models import Alert, AlertDelivery, AlertMessage, AlertRule
from tests.support.loopback_servers import Server, answer, serving
from tests.support.project_rows import AddRule, Clock, failed
from tests.support.timing import at_once

State = AlertDelivery.State


@pytest.fixture(autouse=True)
def _private(settings: Any) -> None:
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    settings.AGENTOPS_BASE_URL = "https://ops.test"


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}/hook"


def received(raw: bytes) -> tuple[dict[str, str], str]:
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}, body.decode()


def due_again() -> None:
    """Expire the claims and make the deliveries due."""
    waiting = AlertDelivery.objects.filter(state=State.WAITING)
    for delivery in waiting:
        assert delivery.due_at is not None
        AlertDelivery.objects.filter(pk=delivery.pk).update(due_at=delivery.due_at - timedelta(days=1))


def test_a_failed_run_reaches_both_webhooks(project: Project, rule: AddRule, clock: Clock) -> None:
    with serving(answer(b"ok")) as hook, serving(answer(b"ok")) as slack:
        found = rule("run_failed", name="A <b>", webhook_url=url_of(hook), slack_url=url_of(slack))
        run = failed(project, "one")
        run.title = "Fix <@everyone> & co"
        run.save(update_fields=["title"])
        clock.evaluate()
        clock.evaluate(seconds=16)
        assert (sending.send_due(), sending.send_due()) == (2, 0)

    headers, body = received(hook.requests[0])
    message = Webhook(channels_of(found).webhook_secret).verify(body, headers)
    delivery = AlertDelivery.objects.get(channel="webhook")
    assert headers["webhook-id"] == f"msg_{delivery.pk.hex}"
    assert (message["type"], message["data"]["count"], message["data"]["agent_id"]) == ("alert.opened", 1, "coder")
    [listed] = message["data"]["runs"]
    assert (listed["run_id"], listed["status"], listed["error"]) == (str(run.pk), "failed", "The disk is full.")
    assert listed["url"] == f"https://ops.test/runs/{run.pk}"

    text = json.loads(received(slack.requests[0])[1])
    assert text["text"] == "alpha: Run of coder failed"
    lines = [block["text"]["text"] for block in text["blocks"] if block["type"] == "section"]
    assert lines[0] == "*Run of coder failed*"
    assert f"<https://ops.test/runs/{run.pk}|Fix &lt;@everyone&gt; &amp; co>" in lines[1]
    assert "rule A &lt;b&gt;" in text["blocks"][-1]["elements"][0]["text"]
    assert len(hook.requests) == len(slack.requests) == 1
    assert set(AlertDelivery.objects.values_list("state", flat=True)) == {State.SENT}


def test_a_secret_in_the_title_is_masked(project: Project, rule: AddRule, clock: Clock) -> None:
    with serving(answer(b"ok")) as hook:
        rule("run_failed", webhook_url=url_of(hook))
        run = failed(project, "one")
        type(run).objects.filter(pk=run.pk).update(error_message="It has ghp_" + "a1B2" * 9)
        clock.evaluate()
        clock.evaluate(seconds=16)
        sending.send_due()
    body = received(hook.requests[0])[1]
    assert "[REDACTED:" in body
    assert "ghp_a1B2" not in body
    assert "ghp_a1B2" not in Notification.objects.get().text


@pytest.mark.parametrize(("status", "after"), [("503 Busy", State.WAITING), ("410 Gone", State.DEAD)])
def test_an_error_status_is_retried_or_final(project: Project, rule: AddRule, status: str, after: str) -> None:
    with serving(answer(b"no", status=status)) as hook:
        found = rule("run_failed", webhook_url=url_of(hook))
        send_test(project, found.pk, by="test")
        assert sending.send_due() == 1
        delivery = AlertDelivery.objects.get()
        assert (delivery.state, delivery.status_code) == (after, int(status[:3]))
        for _ in range(20):
            due_again()
            sending.send_due()
    delivery.refresh_from_db()
    assert (delivery.state, delivery.due_at) == (State.DEAD, None)
    assert delivery.attempts == (1 if after == State.DEAD else len(sending.SCHEDULE_S) + 1)
    assert len({received(raw)[0]["webhook-id"] for raw in hook.requests}) == 1


def test_a_receiver_may_ask_for_a_longer_pause(project: Project, rule: AddRule) -> None:
    with serving(answer(b"no", "Retry-After: 600", status="503 Busy")) as hook:
        found = rule("run_failed", webhook_url=url_of(hook))
        send_test(project, found.pk, by="test")
        began = database_clock.now()
        assert sending.send_due() == 1
    due_at = AlertDelivery.objects.get().due_at
    assert due_at is not None
    assert 595 < (due_at - began).total_seconds() < 660


def test_a_worker_that_dies_after_the_answer_repeats_the_delivery(
    project: Project, rule: AddRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker sends it again with the same ID; until the claim expires, no other worker sends it."""

    def die(name: str) -> None:
        if name == "alert.delivered":
            raise KeyboardInterrupt

    with serving(answer(b"ok")) as hook:
        found = rule("run_failed", webhook_url=url_of(hook))
        send_test(project, found.pk, by="test")
        with monkeypatch.context() as patch:
            patch.setattr(chaos, "point", die)
            with pytest.raises(KeyboardInterrupt):
                sending.send_due()
        assert sending.send_due() == 0
        due_again()
        assert sending.send_due() == 1
    assert len({received(raw)[0]["webhook-id"] for raw in hook.requests}) == 1
    assert AlertDelivery.objects.get().attempts == 2


def test_addresses_are_checked_again(project: Project, rule: AddRule, settings: Any) -> None:
    with serving(answer(b"ok")) as hook:
        found = rule("run_failed", webhook_url=url_of(hook))
        settings.AGENTOPS_ALLOW_PRIVATE_SINKS = False
        send_test(project, found.pk, by="test")
        sending.send_due()
        assert hook.requests == []
    assert "not allowed" in AlertDelivery.objects.get().error


def test_a_removed_channel_gets_nothing(project: Project, rule: AddRule) -> None:
    found = rule("run_failed", webhook_url="https://hooks.example.com/x")
    send_test(project, found.pk, by="test")
    change_rule(project, found.pk, {"webhook_url": ""}, by="test")
    sending.send_due()
    assert AlertDelivery.objects.get().state == State.DEAD
    assert AlertRule.objects.get().sealed is None


def test_an_impossible_delivery_does_not_block_others_and_is_given_up(project: Project, rule: AddRule) -> None:
    """For example, if its secret is damaged, so that no request can be made."""
    with serving(answer(b"ok")) as hook:
        broken, good = (rule("run_failed", name=name, webhook_url=url_of(hook)) for name in ("broken", "good"))
        values = {**asdict(channels_of(broken)), "webhook_secret": ""}
        broken.sealed, broken.key_id = sealing.seal(json.dumps(values), f"alert rule {broken.pk}")
        broken.save(update_fields=["sealed", "key_id"])
        send_test(project, broken.pk, by="test")
        send_test(project, good.pk, by="test")
        assert sending.send_due() == 2
        assert len(hook.requests) == 1
        for _ in range(len(sending.SCHEDULE_S)):
            due_again()
            sending.send_due()

    states = {each.message.rule.name: (each.state, each.error) for each in AlertDelivery.objects.all()}
    assert states["good"] == (State.SENT, "")
    assert states["broken"] == (State.DEAD, "unexpected error: ValueError")


def test_a_worker_that_dies_while_storing(
    project: Project, rule: AddRule, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(name: str) -> None:
        if name == "alert.in_transaction":
            raise KeyboardInterrupt

    rule("run_failed")
    failed(project, "one")
    for later in (0, 16):
        with monkeypatch.context() as patch:
            patch.setattr(chaos, "point", die)
            with pytest.raises(KeyboardInterrupt):
                clock.evaluate(seconds=later)
        clock.evaluate()
    assert (Alert.objects.get().count, AlertMessage.objects.count(), Notification.objects.count()) == (1, 1, 1)


@pytest.mark.django_db(transaction=True)
def test_concurrent_workers_evaluate_once(project: Project, rule: AddRule, settings: Any) -> None:
    """They also send at once: everything is detected, announced and sent once."""
    settings.AGENTOPS_ALERTS_S = 0
    with serving(answer(b"ok")) as hook:
        rule("run_failed", webhook_url=url_of(hook))
        for number in range(5):
            failed(project, f"run-{number}")
        for _ in range(3):
            at_once(lambda _: evaluation.evaluate(), 4)
        at_once(lambda _: sending.send_due(), 4)
    assert Alert.objects.get().count == 5
    assert list(AlertMessage.objects.values_list("event", "count")) == [("opened", 5)]
    assert Notification.objects.count() == 1
    assert len(hook.requests) == 1
