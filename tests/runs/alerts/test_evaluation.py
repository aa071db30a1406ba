"""Evaluation of alert rules: each finding is announced once; alerts are grouped, repeated, muted, and closed."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Notification, Project
from runs.alerts import alert_rule_changes, evaluation
from runs.alerts.alert_rule_changes import change_rule
from runs.alerts.alert_texts import describe
from runs.external.recorded_ends import notice_silence
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, Alert, AlertDelivery, AlertFinding, AlertMessage, AlertRule, Sink
from runs.providers.streaming_provider import AnswerEnd
from runs.queries.needs import count_of
from runs.queries.waiting_for_people import waiting_for_people
from runs.statuses import RunStatus
from tests.support.engine import saying
from tests.support.factories import drive, make_agent, make_awaiting_approval, make_project, make_run, make_waiting
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import AddRule, Clock, append, export, external, failed, make_sink
from tests.support.scripted_model import PLAYS
from timeline.events.run import RunFailed
from timeline.models import Log, Source

Event = AlertMessage.Event


def events() -> list[tuple[str, int]]:
    """Return the messages sent so far: event and number of findings."""
    return list(AlertMessage.objects.order_by("pk").values_list("event", "count"))


def titles() -> list[str]:
    kind = Notification.Kind.ALERT
    return list(Notification.objects.filter(kind=kind).order_by("pk").values_list("title", flat=True))


def silence(run: Any, **ago: float) -> None:
    """Set the age of the newest event of a run."""
    log = Log.objects.get(pk=run.pk)
    assert log.last_event_at is not None
    Log.objects.filter(pk=run.pk).update(last_event_at=log.last_event_at - timedelta(**ago))


def fail(run: AgentRun) -> None:
    claimed = transitions.claim(run.pk, "worker")
    assert claimed is not None
    end = RunFailed(error_type="boom")
    transitions.move(claimed.run, RunStatus.FAILED, end, source=Source.WORKER, epoch=1, reason="boom")


def test_runs_that_fail_together_make_one_message(project: Project, rule: AddRule, clock: Clock) -> None:
    """Later failures are in the next message, sent at the earliest after `group_minutes`; none is announced twice."""
    rule("run_failed", group_minutes=10)
    for number in range(3):
        failed(project, f"first-{number}")
    failed(project, "other", agent="writer")
    clock.evaluate()
    assert events() == []

    clock.evaluate(seconds=16)
    assert sorted(events()) == [(Event.OPENED, 1), (Event.OPENED, 3)]
    assert sorted(titles()) == ["3 runs of coder failed", "Run of writer failed"]
    failed(project, "later-1")
    failed(project, "later-2")
    for minutes in (0.3, 1, 8):
        clock.evaluate(minutes=minutes)
    assert len(events()) == 2
    clock.evaluate(minutes=2)

    assert events()[2:] == [(Event.CONTINUED, 2)]
    assert titles()[-1] == "More: 2 runs of coder failed"
    alert = Alert.objects.get(agent="coder")
    assert (alert.count, alert.closed_at) == (5, None)
    clock.evaluate(minutes=11)
    assert not Alert.objects.filter(closed_at=None).exists()
    assert clock.evaluate(hours=30) == 0
    assert len(events()) == 3


def test_one_failed_run_is_described(project: Project, rule: AddRule, clock: Clock) -> None:
    run = failed(project, "only")
    rule("run_failed")
    clock.evaluate()
    assert clock.evaluate(seconds=16) == 0  # it failed before the rule existed
    run = failed(project, "second")
    clock.evaluate()
    clock.evaluate(seconds=16)

    [mail] = Notification.objects.all()
    assert (mail.title, mail.run_id) == ("Run of coder failed", run.pk)
    assert "The disk is full." in mail.text
    assert "/p/alpha/alerts" in mail.text


def test_a_stalled_run_is_reported_and_closed_when_it_continues(project: Project, rule: AddRule, clock: Clock) -> None:
    rule("run_stalled", minutes=15, announces_end=True)
    quiet, busy = external(project, "quiet"), external(project, "busy")
    queued = make_run(make_agent(project, slug="native"))
    for run in (quiet, queued):
        silence(run, minutes=16)
    assert notice_silence() == 1
    clock.evaluate()
    clock.evaluate(seconds=16)
    assert sorted(titles()) == ["Run of coder has stalled", "Run of native has stalled"]
    assert sorted(AlertFinding.objects.values_list("detail", flat=True)) == [
        "in the queue for 16 min",
        "no event for 16 min",
    ]
    assert not AlertFinding.objects.filter(run=busy).exists()

    external(project, "quiet", {"type": "llm.text", "payload": {"text": "Going on."}})
    drive(queued)
    clock.evaluate(seconds=10)
    assert sorted(titles()[2:]) == ["Over: Run of coder has stalled", "Over: Run of native has stalled"]
    assert not Alert.objects.filter(closed_at=None).exists()
    # The next stall of the same run is announced again, but not within `group_minutes`.
    silence(quiet, minutes=20)
    clock.evaluate(minutes=1)
    clock.evaluate(minutes=1)
    assert len(titles()) == 4
    clock.evaluate(minutes=9)
    assert titles()[4:] == ["More: Run of coder has stalled"]


def test_each_wait_for_a_person_is_notified_once(project: Project, rule: AddRule, clock: Clock) -> None:
    """Approvals and pauses after errors already notify users, so the rule adds only webhooks."""
    rule("run_waiting", webhook_url="https://hooks.example.com/secret-path")
    waiting = make_awaiting_approval(project)
    unknown = make_waiting(project)
    stopped = make_run(make_agent(project))
    inbox.pause(stopped.pk, by="user:oscar")
    clock.evaluate()
    clock.evaluate(seconds=16)

    kinds = dict(Notification.objects.values_list("run_id", "kind"))
    assert kinds == {waiting.pk: Notification.Kind.APPROVAL, unknown.pk: Notification.Kind.ALERT}
    assert AlertDelivery.objects.count() == 2
    details = dict(AlertFinding.objects.values_list("run_id", "detail"))
    assert details == {
        waiting.pk: "waits for approval",
        unknown.pk: "waits for the outcome of a tool call",
    }


def test_a_waiting_session_of_another_program_is_reported_as_in_the_inbox(
    project: Project, rule: AddRule, clock: Clock
) -> None:
    """Also a session that `agentops watch` follows, although imported runs are ignored otherwise."""
    rule("run_waiting", announces_end=True)
    for name, reason in (("asks", "approval"), ("idle", "input"), ("followed", "approval")):
        external(project, name, {"type": "run.waiting", "payload": {"reason": reason}})
    AgentRun.objects.filter(external_id="followed").update(source=AgentRun.Source.IMPORT)
    clock.evaluate()
    clock.evaluate(seconds=16)
    found = dict(AlertFinding.objects.values_list("run__external_id", "detail"))
    assert found == {
        "asks": "waits for approval",
        "followed": "waits for approval",
        "idle": "waits for an answer",
    }
    assert titles() == ["3 runs of coder wait for a person"]
    assert waiting_for_people(project) == count_of(project.pk).total == len(found)

    for name in ("asks", "idle"):
        external(project, name, {"type": "run.phase", "payload": {"status": "running"}})
    AgentRun.objects.filter(external_id="followed").update(status="running", status_reason="")
    clock.evaluate(seconds=10)
    assert not Alert.objects.filter(closed_at=None).exists()


def test_open_alerts_are_repeated_after_hours(project: Project, rule: AddRule, clock: Clock) -> None:
    rule("run_waiting", repeat_hours=4)
    make_waiting(project)
    clock.evaluate()
    clock.evaluate(seconds=16)
    for _ in range(3):
        clock.evaluate(hours=1)
    assert events() == [(Event.OPENED, 1)]
    clock.evaluate(hours=1)
    clock.evaluate(hours=1)
    assert events() == [(Event.OPENED, 1), (Event.REPEATED, 1)]


def test_costs_of_runs_and_of_the_day(project: Project, rule: AddRule, clock: Clock) -> None:
    rule("run_cost", limit_usd="0.5")
    day = rule("day_cost", limit_usd="1")
    run = external(project, "costly")
    external(project, "costly", {"type": "run.completed", "payload": {"costUsd": "0.75"}})
    clock.evaluate()
    clock.evaluate(seconds=16)
    run.refresh_from_db()
    assert run.cost_usd == Decimal("0.75")
    assert titles() == ["Run of coder is above its cost limit"]
    assert AlertFinding.objects.get().detail == "$0.75 spent, limit $0.50"

    external(project, "cheap", {"type": "run.completed", "payload": {"costUsd": "0.25"}})
    clock.evaluate(seconds=30)
    assert titles()[1:] == ["Cost of today is above the limit"]
    # Raising a limit closes the alert. Lowering it again on the same day does not announce it again.
    change_rule(project, day.pk, {"limit_usd": "2"}, by="test")
    clock.evaluate(seconds=30)
    change_rule(project, day.pk, {"limit_usd": "1"}, by="test")
    clock.evaluate(seconds=30)
    clock.evaluate(minutes=30)
    assert len(titles()) == 2


def test_the_error_rate_of_an_agent(project: Project, rule: AddRule, clock: Clock) -> None:
    """Counts its newest runs that have a result; requires a minimum number."""
    rule("error_rate", percent=50, last_runs=4, min_runs=3)
    good, bad = make_agent(project, slug="good"), make_agent(project, slug="bad")
    for _ in range(3):
        drive(make_run(good))
    for _ in range(2):
        fail(make_run(bad))
    clock.evaluate()
    assert titles() == []
    fail(make_run(bad))
    clock.evaluate(seconds=30)

    assert titles() == ["Error rate of bad is above the limit"]
    assert AlertFinding.objects.get().detail == "3 of the last 3 runs failed (100 %), limit 50 %"


@pytest.mark.parametrize(("end", "reason"), [("max_tokens", "answer cut off"), ("refusal", "answer refused")])
def test_pauses_because_of_an_answer(project: Project, rule: AddRule, clock: Clock, end: str, reason: str) -> None:
    """They count as failed, and wait for a person."""
    rule("error_rate", percent=50, last_runs=4, min_runs=2)
    rule("run_waiting", webhook_url="https://hooks.example.com/secret-path")
    PLAYS["of-the-alert"] = saying(["Half", AnswerEnd(end)], ["Half", AnswerEnd(end)])
    agent = make_agent(
        project, provider="scripted", model="scripted-model", settings={"play": "of-the-alert"}, tools=[]
    )
    for _ in range(2):
        assert drive(make_run(agent, "Go.")).status == "paused"
    clock.evaluate()
    clock.evaluate(seconds=30)

    details = AlertFinding.objects.order_by("detail").values_list("detail", flat=True)
    assert list(details) == ["2 of the last 2 runs failed (100 %), limit 50 %", *[f"paused, {reason}"] * 2]


def test_the_error_rate_of_a_single_run(project: Project, rule: AddRule, clock: Clock) -> None:
    added = rule("error_rate", percent=50, last_runs=1, min_runs=1)
    fail(make_run(make_agent(project)))
    clock.evaluate()

    assert AlertFinding.objects.get().detail == "1 of the last 1 run failed (100 %), limit 50 %"
    assert describe(added) == "50 % or more of an agent's last 1 run failed, of at least 1"


def test_mutes(project: Project, rule: AddRule, clock: Clock) -> None:
    """Failures under a mute are listed but never announced; findings still open when the mute ends are announced."""
    rule("run_failed", label="")
    waits = rule("run_waiting")
    alert_rule_changes.mute(project, 60, by="user:oscar", agent="Coder \N{GREEK SMALL LETTER ALPHA}")
    alert_rule_changes.mute(project, 60, by="user:oscar", rule=waits)
    failed(project, "muted", agent="Coder \N{GREEK SMALL LETTER ALPHA}")
    failed(project, "heard", agent="writer")
    make_waiting(project)
    clock.evaluate()
    clock.evaluate(seconds=16)
    assert titles() == ["Run of writer failed"]
    assert Alert.objects.count() == 3

    clock.evaluate(minutes=61)
    assert [title.rpartition(" waits ")[2] for title in titles()[1:]] == ["for a person"]


def test_filters_of_a_rule(project: Project, rule: AddRule, clock: Clock) -> None:
    rule("run_failed", agent="writer")
    rule("run_waiting", label="nightly")
    failed(project, "other")
    failed(project, "meant", agent="writer")
    run = make_waiting(project)
    clock.evaluate()
    assert [finding.run.external_id for finding in AlertFinding.objects.all() if finding.run] == ["meant"]
    run.labels = ["nightly"]
    run.save(update_fields=["labels"])
    clock.evaluate()
    assert AlertFinding.objects.filter(run=run).exists()


def test_a_disabled_rule_finds_nothing(project: Project, rule: AddRule, clock: Clock) -> None:
    found = rule("run_waiting")
    make_waiting(project)
    clock.evaluate()
    change_rule(project, found.pk, {"is_enabled": False}, by="test")
    clock.evaluate(minutes=5)
    assert events() == []
    assert not Alert.objects.filter(closed_at=None).exists()
    change_rule(project, found.pk, {"is_enabled": True}, by="test")
    clock.evaluate()
    clock.evaluate(minutes=30)
    assert events() == [(Event.OPENED, 1)]


def test_an_enabled_rule_ignores_earlier_failures(project: Project, rule: AddRule, clock: Clock) -> None:
    found = rule("run_failed")
    AlertRule.objects.filter(pk=found.pk).update(created_at=clock.now() - timedelta(hours=1))
    change_rule(project, found.pk, {"is_enabled": False}, by="test")
    failed(project, "while it was off")
    change_rule(project, found.pk, {"is_enabled": True}, by="test")
    failed(project, "afterwards")
    for minutes in (0, 1, 4, 4):
        clock.evaluate(minutes=minutes)

    assert [finding.run.external_id for finding in AlertFinding.objects.all() if finding.run] == ["afterwards"]
    assert events() == [(Event.OPENED, 1)]


def test_failures_are_detected_after_hours_without_a_worker(project: Project, rule: AddRule, clock: Clock) -> None:
    found = rule("run_failed")
    failed(project, "unseen")
    # The rule was evaluated before the failure; then no worker ran for two days.
    AlertRule.objects.filter(pk=found.pk).update(checked_at=clock.now() - timedelta(minutes=1))
    clock.evaluate(days=2)
    clock.evaluate(seconds=16)
    assert events() == [(Event.OPENED, 1)]


@pytest.mark.parametrize("amount", [1, 7])
def test_the_number_of_queries_is_constant(project: Project, rule: AddRule, amount: int) -> None:
    """It also writes nothing if nothing changed."""
    for kind, limits in {
        "run_failed": {},
        "run_stalled": {},
        "run_waiting": {},
        "run_cost": {"limit_usd": "1"},
        "day_cost": {"limit_usd": "1"},
        "error_rate": {},
        "sink_behind": {},
    }.items():
        for number in range(amount):
            rule(kind, name=f"{kind} {number}", **limits)
    for number in range(amount):
        failed(project, f"run-{number}")
    evaluation.evaluate()
    with CaptureQueriesContext(connection) as queries:
        evaluation.evaluate()
    assert len(queries) == 14
    assert all(query["sql"].lstrip().startswith("SELECT") for query in queries)


def test_a_sink_whose_receiver_falls_behind_is_reported(
    project: Project, rule: AddRule, clock: Clock, receiver: Receiver
) -> None:
    rule("sink_behind", minutes=30, announces_end=True)
    sinks = [
        make_sink(each, "webhook", {"url": receiver.url}, name="in", event_types=("x.note",))
        for each in (project, make_project("other"))
    ]
    for sink in sinks:
        append(make_run(make_agent(sink.project)), "waits")
    clock.evaluate(minutes=29)
    assert titles() == []
    clock.evaluate(minutes=2)
    assert titles() == ["A sink is behind"]
    assert AlertFinding.objects.get().detail == "in: the oldest event has waited 31 min"

    export(2)
    clock.evaluate(minutes=1)
    assert titles()[-1] == "Over: A sink is behind"


def test_a_sink_disabled_by_an_error_is_behind_and_one_disabled_by_a_person_is_not(
    project: Project, rule: AddRule, clock: Clock, receiver: Receiver
) -> None:
    rule("sink_behind", minutes=30)
    for name, reason in (("refused", "the receiver answered 401"), ("off", "")):
        sink = make_sink(project, "webhook", {"url": receiver.url}, name=name, event_types=("x.note",))
        Sink.objects.filter(pk=sink.pk).update(is_enabled=False, disabled_reason=reason)
    append(make_run(make_agent(project)), "waits")
    clock.evaluate(minutes=40)
    assert [finding.detail for finding in AlertFinding.objects.all()] == [
        "refused: the oldest event has waited 40 min: the receiver answered 401"
    ]
