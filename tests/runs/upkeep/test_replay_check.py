"""Replaying all events equals the rows, for every run that the engine writes, and detects corrupted rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone
from uuid_utils.compat import uuid7

from runs import chaos
from runs.actions.resume import resume
from runs.engine.results import ShutdownDue
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunCommand
from runs.statuses import RunStatus
from runs.upkeep import replay_check
from runs.upkeep.replay_check import Mismatch, differences, frame_of
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.upkeep import reported_run
from timeline.models import Event
from timeline.tombstones import allow_changes

FIXTURE = "claude-code-7e"


def every_difference() -> dict[UUID, list[Mismatch]]:
    return {run_id: differences(run_id) for run_id in AgentRun.objects.values_list("pk", flat=True)}


def agree() -> bool:
    found = every_difference()
    return bool(found) and not any(found.values())


# --- Runs of the engine are consistent --------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
class TestTheEventsAddUpTo:
    @pytest.mark.parametrize("fixture", ["claude-code-5c", "claude-code-7e"])
    def test_a_completed_run(self, fixture: str) -> None:
        """tests/runs/fixtures/test_recordings.py covers all other recordings."""
        drive(make_run(make_agent(fixture=fixture)))

        assert agree()

    def test_a_lineage(self) -> None:
        old = drive(make_run(make_agent(fixture=FIXTURE, max_steps=3)))
        assert agree()
        new = resume(old.pk, by="test", message="go on").run
        assert agree()
        drive(new)

        assert agree()

    def test_a_run_that_has_not_begun(self) -> None:
        run = make_run()
        inbox.send(run.pk, "and more", by="test", key="k")
        assert agree()
        inbox.stop(run.pk, by="test")

        assert agree()

    def test_a_command_whose_key_looks_like_a_secret(self) -> None:
        inbox.send(make_run().pk, "and more", by="test", key="sk-ant-api03-" + "aB3" * 30)

        assert agree()

    def test_a_running_run_and_a_recovered_one(self) -> None:
        run = make_run()
        transitions.claim(run.pk, "dead")
        inbox.send(run.pk, "and more", by="test")
        assert agree()
        AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))

        assert drive(run).status == RunStatus.COMPLETED
        assert agree()

    @pytest.mark.parametrize(
        "point", ["model.before_call", "turn.committed", "tool.marked_running", "tool.returned", "result.committed"]
    )
    def test_a_run_handed_back_and_then_ended(self, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
        run = make_run(make_agent(fixture=FIXTURE))
        let_go_at(point, monkeypatch)
        worker = Worker()
        worker.drive(run.pk)
        worker.close(5)
        assert agree()

        inbox.stop(run.pk, by="test")

        assert agree()

    @pytest.mark.parametrize("policy", ["wait", "tell_model"])
    def test_a_call_whose_outcome_is_unknown(self, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
        agent = make_agent(fixture=FIXTURE, settings={"recorded_effect": "at_most_once", "on_unknown_tool": policy})
        run = make_run(agent)
        let_go_at("tool.marked_running", monkeypatch)
        worker = Worker()
        worker.drive(run.pk)
        worker.close(5)

        assert drive(run).status == {"wait": RunStatus.WAITING, "tell_model": RunStatus.COMPLETED}[policy]
        assert AgentRunToolCall.objects.get(run=run, status="unknown").starts == 1
        assert agree()


def let_go_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a worker that must end give the run back at this point, once."""
    left = [name]

    def point(reached: str) -> None:
        if reached in left:
            left.remove(reached)
            raise ShutdownDue

    monkeypatch.setattr(chaos, "point", point)


# --- Differences are detected -----------------------------------------------------------------------------------


@pytest.fixture
def run(db: None) -> AgentRun:
    done = drive(make_run())
    assert differences(done.pk) == []
    return done


def a_message(run: AgentRun) -> AgentRunMessage:
    return AgentRunMessage.objects.get(run=run, position=2)


def a_call(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.filter(run=run).order_by("id")[0]


def without_a_call(run: AgentRun) -> None:
    AgentRunToolCall.objects.filter(pk=a_call(run).pk).delete()


def with_a_planned_call(run: AgentRun) -> None:
    call = a_call(run)
    call.pk, call.call_id, call.status, call.starts = uuid7(), "more", "planned", 0
    call.idempotency_key = call.result_message_id = None
    call.save(force_insert=True)


def with_a_command(run: AgentRun) -> None:
    RunCommand.objects.create(run=run, type="stop", created_by="test", received_at=timezone.now())


def without_a_command(run: AgentRun) -> None:
    change(run, 'type = \'command.received\', payload = \'{"type": "send", "key": "k"}\'', "type = 'run.started'")


def change(run: AgentRun, what: str, where: str) -> None:
    with allow_changes("a test spoils the log"), connection.cursor() as cursor:
        pk = AgentRun._meta.pk.get_db_prep_value(run.pk, connection)
        cursor.execute(f"UPDATE agent_run_events SET {what} WHERE log_id = %s AND {where}", [pk])
        assert cursor.rowcount


def row(**columns: object) -> Callable[[AgentRun], None]:
    return lambda run: AgentRun.objects.filter(pk=run.pk).update(**columns) and None


def message(**columns: object) -> Callable[[AgentRun], None]:
    return lambda run: AgentRunMessage.objects.filter(pk=a_message(run).pk).update(**columns) and None


def call(**columns: object) -> Callable[[AgentRun], None]:
    return lambda run: AgentRunToolCall.objects.filter(pk=a_call(run).pk).update(**columns) and None


def event(what: str, where: str) -> Callable[[AgentRun], None]:
    return lambda run: change(run, what, where)


Spoil = Callable[[AgentRun], None]
SPOILT: list[tuple[Spoil, list[str]]] = [
    (row(status="failed"), ["status", "phase"]),
    (row(status_reason="x"), ["status_reason"]),
    (event("phase = 'running'", "type = 'run.completed'"), ["phase"]),
    (event("type = 'error'", "type = 'run.completed'"), ["status", "phase"]),
    (row(step_count=6), ["step_count", "steps of this run"]),
    (row(output_tokens=1), ["output_tokens"]),
    (row(cost_usd=1), ["cost_usd"]),
    (row(cost_usd=None), ["cost_usd"]),
    (message(role="user"), ["message 2"]),
    (message(position=99), ["message 99"]),
    (message(step_number=9), ["message 2"]),
    (message(rolled_back_at=timezone.now()), ["message 2"]),
    (event("type = 'error'", "type = 'message.added' AND seq = 2"), ["number of messages"]),
    (call(status="error"), ["tool call"]),
    (call(starts=2), ["tool call"]),
    (call(call_id="other"), ["tool call"]),
    (without_a_call, ["tool call", "tool calls of step 1"]),
    (with_a_planned_call, ["tool calls of step 1"]),
    (with_a_command, ["stop commands"]),
    (without_a_command, ["send command 'k'"]),
]


def test_corrupted_rows_are_detected(run: AgentRun) -> None:
    for spoil, what in SPOILT:
        with transaction.atomic():
            spoil(run)
            found = differences(run.pk)
            transaction.set_rollback(True)
        told = [f"{d.what} " for d in found]
        assert all(any(line.startswith(f"{word} ") for line in told) for word in what), (what, found)
        allowed = tuple(f"{word} " for word in [*what, "message"])
        assert [line for line in told if not line.startswith(allowed)] == [], (what, found)
    assert differences(run.pk) == []


def test_the_log_is_read_as_a_stream(run: AgentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_check, "CHUNK", 3)

    assert frame_of(run.pk).seq == Event.objects.filter(log=run.pk).count()
    assert differences(run.pk) == []


#: For an external run, whose rows are projected from its events.
SPOILT_OUTSIDE: list[tuple[Spoil, list[str]]] = [
    (row(status="stopped"), ["status", "phase"]),
    (row(step_count=5), ["step_count", "steps of this run"]),
    (row(input_tokens=1), ["input_tokens"]),
    (row(cost_usd=None), ["cost_usd"]),
    (message(role="user"), ["message 2"]),
    (call(status="error"), ["tool call"]),
    (call(starts=2), ["tool call"]),
    (with_a_planned_call, ["tool calls of step 1"]),
    (event("type = 'error'", "type = 'tool.end'"), ["tool call"]),
    (event("type = 'error'", "type = 'llm.turn.end' AND step = 2"), ["input_tokens", "output_tokens"]),
]


# --- The command ------------------------------------------------------------------------------------------------


def told(*args: str) -> tuple[str, int]:
    out = StringIO()
    try:
        call_command("check_runs", *args, stdout=out, stderr=StringIO())
    except CommandError as error:
        return out.getvalue(), error.returncode
    return out.getvalue(), 0


def test_the_command_reports_no_differences(run: AgentRun) -> None:
    assert told() == ("1 checked, 0 differ.\n", 0)
    assert told(str(run.pk), "--json") == ('{"checked": 1, "differing": {}}\n', 0)


def test_the_command_reports_differences(run: AgentRun) -> None:
    row(output_tokens=1)(run)

    text, code = told()

    assert code == 1
    assert f"{run.pk} differs\n  output_tokens: events: {run.output_tokens}, rows: 1\n" in text
    parsed = json.loads(told("--json")[0])
    assert parsed["differing"] == {
        str(run.pk): [{"what": "output_tokens", "events": str(run.output_tokens), "rows": "1"}]
    }


def test_the_command_checks_only_the_given_runs_and_projects(run: AgentRun) -> None:
    other = make_run(make_agent(project := make_project("other")))
    row(output_tokens=1)(run)

    assert told("--project", project.slug) == ("1 checked, 0 differ.\n", 0)
    assert told(str(other.pk)) == ("1 checked, 0 differ.\n", 0)
    assert told(str(other.pk).replace("-", "")[:30])[1] == 0
    assert told(str(other.pk), str(run.pk))[1] == 1
    assert told("--project", project.slug, str(run.pk))[1] == 3


def test_the_command_refuses_unknown_runs_and_projects(db: None) -> None:
    assert told(str(uuid7()))[1] == 3
    assert told("--project", "nowhere")[1] == 3


def test_the_command_checks_external_runs(db: None) -> None:
    reported = reported_run()
    assert told() == ("1 checked, 0 differ.\n", 0)
    assert told(str(reported.pk)) == ("1 checked, 0 differ.\n", 0)

    for spoil, what in SPOILT_OUTSIDE:
        with transaction.atomic():
            spoil(reported)
            found = differences(reported.pk)
            assert told()[1] == 1
            transaction.set_rollback(True)
        assert {difference.what.partition(" 0")[0] for difference in found} == set(what), found
