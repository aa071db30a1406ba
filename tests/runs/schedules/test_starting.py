"""Due times start runs: one each, according to the overlap and catch-up rules."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django_celery_beat.models import CrontabSchedule, PeriodicTask

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import AuditEntry, Project
from runs import tasks
from runs.actions import flow_definitions, run_actions
from runs.actions.schedules import schedule_changes
from runs.actions.schedules.due_times import MAX_DUE, ON_TIME, decide
from runs.actions.schedules.schedule_changes import change_schedule, next_times, problem_of, run_now, run_prepared
from runs.actions.schedules.schedule_definition import ScheduleDefinition
from runs.actions.schedules.starting import ScheduleChanged, due_schedules, prepare, start_due, start_due_schedules
from runs.errors import InvalidAgent
from runs.lifecycle import flow_transitions
from runs.models import Agent, AgentRun, FlowRun, Schedule, ScheduleStart
from runs.statuses import RunStatus
from runs.worker import upkeep, upkeep_call
from tests.support.factories import drive, make_agent, make_project, with_key
from tests.support.flows import make_flow
from tests.support.project_rows import SetClock, make_schedule, outcomes, runs_of
from tests.support.run_checks import refuses


def test_a_due_time_starts_one_run(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project, cron="0 9-17 * * *", time_zone="Europe/Berlin", prompt="Report.")
    assert start_due_schedules() == 0
    clock.set("2026-06-01 10:00")
    assert start_due_schedules() == 1
    assert [start_due_schedules(), start_due(schedule.pk)] == [0, False]
    [run] = runs_of(schedule)
    assert (run.status, run.prompt, run.agent.slug) == ("queued", "Report.", "player")
    [start] = ScheduleStart.objects.all()
    assert (start.due_at, start.run_id, start.outcome) == (clock.at, run.pk, "started")
    created = AuditEntry.objects.get(action="run.created")
    assert (created.actor, created.object_id) == ("schedule nightly", str(run.pk))
    with pytest.raises(IntegrityError), transaction.atomic():
        ScheduleStart.objects.create(schedule=schedule, due_at=start.due_at, outcome="skipped", decided_at=clock.at)


def test_a_clock_that_moves_back_starts_nothing_again(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project, overlap="allow")
    clock.set("2026-06-01 09:03:10")
    assert start_due(schedule.pk)
    clock.set("2026-06-01 08:00")
    assert not start_due(schedule.pk)
    clock.set("2026-06-01 09:04")
    assert start_due(schedule.pk)
    assert outcomes(schedule) == [(f"09:0{minute}", "started") for minute in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("allow", ["started", "started", "started"]),
        ("skip", ["started", "skipped", "skipped"]),
        ("queue", ["started", "waiting", "skipped"]),
    ],
)
def test_overlap_with_an_active_run(project: Project, clock: SetClock, overlap: str, expected: list[str]) -> None:
    schedule = make_schedule(project, overlap=overlap)
    for _ in expected:
        clock.move(minutes=1)
        start_due_schedules()
    assert [outcome for _, outcome in outcomes(schedule)] == expected
    refused = ScheduleStart.objects.filter(outcome="skipped").values_list("reason", flat=True)
    assert set(refused) <= {"schedule_still_going", "schedule_start_waits"}
    # The last run ends.
    drive(runs_of(schedule)[0])
    clock.move(seconds=5)
    assert start_due_schedules() == (overlap == "queue")
    assert start_due_schedules() == 0
    expected = ["started" if each == "waiting" else each for each in expected]
    assert [outcome for _, outcome in outcomes(schedule)] == expected
    assert len(runs_of(schedule)) == expected.count("started")


def test_a_paused_run_is_not_active_and_a_resumed_one_is(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project)
    clock.move(minutes=1)
    start_due_schedules()
    [run] = runs_of(schedule)
    run_actions.pause(SYSTEM, run)
    run.refresh_from_db()
    assert run.state is RunStatus.PAUSED
    clock.move(minutes=1)
    start_due_schedules()
    assert outcomes(schedule)[-1] == ("09:02", "started")
    resumed = run_actions.resume(SYSTEM, run).run
    assert resumed.schedule_id == schedule.pk
    drive(runs_of(schedule)[1])
    clock.move(minutes=1)
    start_due_schedules()
    assert outcomes(schedule)[-1] == ("09:03", "skipped")


def test_a_waiting_start_is_dropped_when_the_schedule_is_disabled(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project, overlap="queue")
    for _ in range(2):
        clock.move(minutes=1)
        start_due_schedules()
    change_schedule(project, schedule.pk, {"is_enabled": False}, by=SYSTEM)
    drive(runs_of(schedule)[0])
    start_due_schedules()
    assert outcomes(schedule) == [("09:01", "started"), ("09:02", "skipped")]
    assert ScheduleStart.objects.last().reason == "schedule_disabled"


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", [("11:00", "missed")]),
        ("last", [("10:00", "missed"), ("11:00", "started")]),
    ],
)
def test_due_times_missed_while_the_site_was_down(
    project: Project, clock: SetClock, catch_up: str, expected: list[tuple[str, str]]
) -> None:
    schedule = make_schedule(project, cron="0 * * * *", catch_up=catch_up)
    clock.set("2026-06-03 11:59")
    assert start_due_schedules() == 1
    assert outcomes(schedule) == expected
    missed = ScheduleStart.objects.filter(outcome="missed").first()
    assert missed is not None
    assert (missed.first_due_at, missed.count) == (datetime(2026, 6, 1, 10, tzinfo=UTC), 50 - (catch_up == "last"))
    clock.set("2026-06-03 12:00")
    drive(runs_of(schedule)[0]) if runs_of(schedule) else None
    start_due_schedules()
    assert outcomes(schedule)[-1] == ("12:00", "started")


def test_a_long_downtime_is_handled_in_batches(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project, catch_up="last")
    clock.move(minutes=2 * MAX_DUE + 100)
    assert start_due_schedules() == 1
    missed = ScheduleStart.objects.filter(outcome="missed").values_list("count", flat=True)
    # The due times of the last five minutes count as on time.
    assert sum(missed) == 2 * MAX_DUE + 100 - 5
    assert [outcome for _, outcome in outcomes(schedule)].count("started") == 1
    assert due_schedules() == []


def test_the_plan() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    late, on_time = now - ON_TIME * 2, now - ON_TIME
    assert decide([late, on_time, now], now, catches_up=True).start == on_time
    assert decide([late], now, catches_up=True).start == late
    assert decide([late], now, catches_up=False).missed == (late,)
    many = [late] * (MAX_DUE + 1)
    assert decide(many, now, catches_up=True).missed == (late,) * MAX_DUE
    assert decide(many, now, catches_up=True).has_more


@pytest.mark.parametrize("reason", ["agent_not_found", "invalid_agent", "project_archived"])
def test_a_failed_start_is_recorded_and_the_schedule_stays_enabled(
    project: Project, clock: SetClock, reason: str
) -> None:
    schedule = make_schedule(project, catch_up="last")
    agent = Agent.objects.get(slug="player")
    if reason == "agent_not_found":
        agent.delete()
    elif reason == "invalid_agent":
        Agent.objects.update(tools=["no-such-tool"])
    else:
        Project.objects.update(archived_at=clock.at)
    clock.move(minutes=1)
    start_due_schedules()
    [start] = ScheduleStart.objects.all()
    assert (start.outcome, start.reason) == ("failed", reason)
    assert start.detail
    assert runs_of(schedule) == []
    assert next_times(schedule)[0] == datetime(2026, 6, 1, 9, 2, tzinfo=UTC)


def test_a_schedule_of_a_flow(project: Project, clock: SetClock) -> None:
    flow = make_flow(
        {
            "flow_id": "sample",
            "inputs": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
            "nodes": [{"id": "only", "type": "constant", "value": 1}],
        },
        project,
    )
    schedule = make_schedule(project, flow="sample", inputs={"day": "Monday"})
    clock.move(minutes=1)
    start_due_schedules()
    [flow_run] = FlowRun.objects.all()
    assert (flow_run.schedule_id, flow_run.inputs) == (schedule.pk, {"day": "Monday"})
    assert ScheduleStart.objects.get().flow_run_id == flow_run.pk
    # The flow now requires another input.
    changed = {**flow.definition, "inputs": {"type": "object", "required": ["week"]}}
    flow_definitions.apply(project, changed, by=SYSTEM)
    FlowRun.objects.update(status="completed", completed_at=clock.at)
    clock.move(minutes=1)
    start_due_schedules()
    assert outcomes(schedule)[-1] == ("09:02", "failed")
    assert ScheduleStart.objects.last().reason == "invalid_inputs"


def test_a_run_started_by_a_user(project: Project, clock: SetClock) -> None:
    """Works if the schedule is disabled, and despite active runs. Later due times treat it as active."""
    schedule = make_schedule(project, is_enabled=False)
    runs = [run_now(project, schedule.pk, by="user:oscar") for _ in range(2)]
    assert [run.pk for run in runs] == [run.pk for run in runs_of(schedule)]
    assert outcomes(schedule) == [("now", "started"), ("now", "started")]
    assert AuditEntry.objects.filter(action="schedule.started", actor="user:oscar").count() == 2
    change_schedule(project, schedule.pk, {"is_enabled": True}, by=SYSTEM)
    clock.move(minutes=1)
    start_due_schedules()
    assert outcomes(schedule)[-1] == ("09:01", "skipped")
    Agent.objects.update(tools=["no-such-tool"])
    with pytest.raises(InvalidAgent):
        run_now(project, schedule.pk, by="user:oscar")
    assert len(outcomes(schedule)) == 3


@pytest.mark.django_db(transaction=True)
def test_flow_inputs_are_checked_outside_of_transactions(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check may take seconds, in which others would wait for its locks, on SQLite all that write."""
    make_flow({"flow_id": "sample", "nodes": [{"id": "only", "type": "constant", "value": 1}]}, project)
    schedule = make_schedule(project, flow="sample", is_enabled=False)
    in_transaction = []
    check = flow_transitions.check_inputs

    def note(*given: Any) -> Any:
        in_transaction.append(connection.in_atomic_block)
        return check(*given)

    monkeypatch.setattr(flow_transitions, "check_inputs", note)
    run_now(project, schedule.pk, by=SYSTEM)
    path, key = f"/api/projects/{project.slug}/schedules/{schedule.pk}/run", with_key(project, "write")
    headers = {**key, "Idempotency-Key": "once"}
    assert Client().post(path, {}, content_type="application/json", headers=headers).status_code == 201

    assert in_transaction == [False, False]


def test_inputs_that_changed_after_their_check_start_nothing(project: Project) -> None:
    make_flow({"flow_id": "sample", "nodes": [{"id": "only", "type": "constant", "value": 1}]}, project)
    schedule = make_schedule(project, flow="sample", is_enabled=False)
    checked = prepare(schedule.pk)
    change_schedule(project, schedule.pk, {"inputs": {"day": "Monday"}}, by=SYSTEM)

    with pytest.raises(ScheduleChanged):
        run_prepared(project, schedule.pk, checked, by=SYSTEM)

    assert not FlowRun.objects.exists()
    assert not AuditEntry.objects.filter(action="schedule.started").exists()
    assert run_now(project, schedule.pk, by=SYSTEM).inputs == {"day": "Monday"}


def test_due_times_while_disabled_are_not_missed(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project, catch_up="last")
    change_schedule(project, schedule.pk, {"is_enabled": False}, by=SYSTEM)
    clock.move(hours=5)
    assert start_due_schedules() == 0
    change_schedule(project, schedule.pk, {"is_enabled": True}, by=SYSTEM)
    assert start_due_schedules() == 0
    clock.move(minutes=1)
    start_due_schedules()
    assert outcomes(schedule) == [("14:01", "started")]


def test_changes_in_the_admin_take_effect_at_the_next_check(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project, cron="0 0 * * *", catch_up="last")
    clock.set("2026-06-01 15:30:10")
    CrontabSchedule.objects.update(hour="*")
    assert start_due_schedules() == 0
    clock.set("2026-06-01 16:00")
    start_due_schedules()
    assert outcomes(schedule) == [("16:00", "started")]
    # A periodic task that belongs to no schedule.
    CrontabSchedule.objects.update(minute="61")
    assert start_due_schedules() == 0
    clock.set("2026-06-02 16:00")
    assert start_due_schedules() == 0
    schedule.refresh_from_db()
    assert "61" in problem_of(schedule)
    assert next_times(schedule) == []
    # It is disabled and enabled again in the admin.
    CrontabSchedule.objects.update(minute="0")
    PeriodicTask.objects.update(enabled=False)
    assert start_due_schedules() == 0
    clock.set("2026-06-04 12:30")
    PeriodicTask.objects.update(enabled=True)
    assert start_due_schedules() == 0
    clock.set("2026-06-04 13:00")
    start_due_schedules()
    # The last run is still active.
    assert outcomes(schedule) == [("16:00", "started"), ("13:00", "skipped")]


def test_a_failed_schedule_does_not_block_others(project: Project, clock: SetClock) -> None:
    broken, other = make_schedule(project), make_schedule(project, name="other")
    make_agent(project, slug="odd", tools=["no-such-tool"])
    Schedule.objects.filter(pk=broken.pk).update(agent="odd")
    clock.move(minutes=1)
    start_due_schedules()
    assert outcomes(broken) == [("09:01", "failed")]
    assert outcomes(other) == [("09:01", "started")]


def test_the_periodic_task_ends_after_its_time_and_the_next_call_continues(
    project: Project, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = [make_schedule(project, name=name) for name in ("first", "second", "third")]
    clock.move(minutes=1)
    monkeypatch.setattr(upkeep_call, "CALL_S", 0.0)
    for calls in (1, 2, 3):
        upkeep.start_due()
        assert [len(outcomes(schedule)) for schedule in schedules] == [1] * calls + [0] * (3 - calls)


def test_a_message_of_beat_only_triggers_a_check(project: Project, clock: SetClock) -> None:
    """Its periodic task names the schedule; duplicate, late and foreign messages do nothing."""
    schedule = make_schedule(project)
    sent = PeriodicTask.objects.get()
    assert (sent.task, sent.queue, sent.priority, sent.expire_seconds) == ("runs.start_scheduled", "upkeep", 0, 60)
    task = tasks.start_scheduled
    assert task.name == sent.task
    task(**json.loads(sent.kwargs))
    assert outcomes(schedule) == []
    clock.move(minutes=1)
    for _ in range(2):
        task(**json.loads(sent.kwargs))
    upkeep.start_due()
    assert outcomes(schedule) == [("09:01", "started")]
    task(schedule_id="01a1f86c-1b1a-72f0-b808-0c8f1390c3f4")


def test_a_change_keeps_a_concurrent_pause(project: Project, clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the new definition may take seconds."""
    schedule = make_schedule(project)
    check = schedule_changes.checked

    def slow_check(*arguments: Any) -> ScheduleDefinition:
        definition = check(*arguments)
        PeriodicTask.objects.update(enabled=False)
        Schedule.objects.update(overlap="allow")
        return definition

    monkeypatch.setattr(schedule_changes, "checked", slow_check)
    changed = change_schedule(project, schedule.pk, {"prompt": "Changed."}, by=SYSTEM)
    assert (changed.prompt, changed.is_enabled, changed.overlap) == ("Changed.", False, "allow")


def test_a_change_of_another_projects_schedule_is_refused_first(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project)
    clock.move(minutes=1)
    with refuses("schedule_not_found"):
        change_schedule(make_project("beta"), schedule.pk, {"is_enabled": False}, by=SYSTEM)
    assert outcomes(schedule) == []


def test_a_schedule_whose_start_fails_can_be_paused(project: Project, clock: SetClock) -> None:
    schedule = make_schedule(project)
    clock.move(minutes=1)
    # An error that is not a refusal: the outcome of this due time already exists.
    ScheduleStart.objects.create(
        schedule=schedule, due_at=clock.at.replace(second=0), outcome="skipped", decided_at=clock.at
    )
    assert not change_schedule(project, schedule.pk, {"is_enabled": False}, by=SYSTEM).is_enabled


def test_removing_a_schedule_clears_it_from_its_runs_in_batches(
    project: Project, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_changes, "DETACHED_AT_ONCE", 2)
    schedule = make_schedule(project, is_enabled=False)
    runs = [run_now(project, schedule.pk, by=SYSTEM) for _ in range(5)]
    with CaptureQueriesContext(connection) as queries:
        schedule_changes.remove_schedule(project, schedule.pk, by=SYSTEM)
    detached = [each for each in queries if each["sql"].startswith("UPDATE") and '"schedule_id" = NULL' in each["sql"]]
    assert len(detached) >= 3
    assert AgentRun.objects.filter(pk__in=[run.pk for run in runs], schedule=None).count() == 5


def test_a_removal_that_fails_has_detached_ended_runs_only(project: Project, clock: SetClock) -> None:
    """Ended runs are detached in transactions of their own, so that many of them do not hold up other writers."""
    schedule = make_schedule(project, overlap="skip")
    ended, live = drive(run_now(project, schedule.pk, by=SYSTEM)), run_now(project, schedule.pk, by=SYSTEM)
    assert ended.completed_at is not None
    with pytest.raises(AttributeError):
        schedule_changes.remove_schedule(project, schedule.pk, by=None)  # the audit log has no name for it
    assert runs_of(schedule) == [live]
    clock.move(minutes=1)
    start_due_schedules()
    assert outcomes(schedule)[-1] == ("09:01", "skipped")

    schedule_changes.remove_schedule(project, schedule.pk, by=SYSTEM)
    assert not Schedule.objects.exists()
    assert AgentRun.objects.filter(schedule=None).count() == 2
