"""Every invariant holds for what the engine leaves behind, and each turns red where the rows are spoilt."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from pytest_django import Settings
from uuid_utils.compat import uuid7

from runs import chaos, inbox, lifecycle
from runs.engine.drive import LetGo
from runs.engine.resume import resume
from runs.engine.worker import Worker
from runs.fixtures.library import find, load
from runs.invariants import INVARIANTS, LISTED, Violation, check, snapshot
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import RunStatus
from tests.make import drive, make_agent, make_log, make_run
from timeline.maintenance import open_door
from timeline.models import Event

FIXTURE = "claude-code-7e"


def red(run_id: UUID | None = None) -> set[str]:
    return {violation.invariant for violation in check(run_id)}


# --- What the engine leaves behind is clean ---------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
class TestItIsQuietAbout:
    def test_an_empty_database(self) -> None:
        assert check() == []

    @pytest.mark.parametrize("fixture", ["claude-code-5c", "claude-code-7e", "claude-code-b6"])
    def test_a_completed_run(self, fixture: str) -> None:
        run = drive(make_run(make_agent(fixture=fixture)))

        assert run.status == RunStatus.COMPLETED
        assert check() == []
        assert check(run.pk) == []

    def test_a_lineage_that_pauses_again_and_again(self) -> None:
        run = drive(make_run(make_agent(fixture=FIXTURE, max_steps=3)))
        while run.status == RunStatus.PAUSED:
            assert check() == []
            resumed = resume(run.pk, by="test").run
            assert check() == []
            run = drive(resumed)

        assert run.status == RunStatus.COMPLETED
        assert run.step_count == len(load(FIXTURE).answers)
        assert check() == []

    def test_a_fresh_start(self) -> None:
        old = drive(make_run(make_agent(fixture=FIXTURE, max_steps=3)))
        new = resume(old.pk, by="test", message="begin again", append=False).run

        assert drive(new).status == RunStatus.PAUSED
        assert check() == []

    def test_runs_that_were_stopped_and_paused_before_they_began(self) -> None:
        inbox.stop(make_run().pk, by="test")
        inbox.pause(make_run().pk, by="test")

        assert check() == []

    @pytest.mark.parametrize("wish", [inbox.stop, inbox.pause])
    @pytest.mark.parametrize("point", ["CP09", "CP12", "CP16", "CP18", "CP20", "CP22"])
    def test_a_run_that_is_asked_to_end_in_the_middle(
        self, wish: Callable[..., object], point: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = make_run(make_agent(fixture=FIXTURE))
        at_point(point, lambda: wish(run.pk, by="test"), monkeypatch, hit=3)

        assert drive(run).status in {RunStatus.STOPPED, RunStatus.PAUSED}
        assert [violation for violation in check() if not violation.warning_only] == []

    @pytest.mark.parametrize("wish", [inbox.stop, inbox.pause])
    def test_a_run_that_was_ended_while_its_calls_were_open(
        self, wish: Callable[..., object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = with_open_calls(monkeypatch)

        wish(run.pk, by="test")

        assert AgentRunToolCall.objects.filter(run=run, status="unknown").exists()
        assert check() == []

    def test_a_failed_run(self, settings: Settings, tmp_path: Path) -> None:
        settings.AGENTOPS_FIXTURES = [str(tmp_path)]
        (tmp_path / "cut.json").write_text(shortened(FIXTURE, calls=2))

        run = drive(make_run(make_agent(fixture="cut")))

        assert (run.status, run.step_count) == (RunStatus.FAILED, 2)
        assert check() == []

    def test_a_run_whose_worker_died(self) -> None:
        run = recovered(make_run())

        assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 2)
        assert check() == []

    def test_a_run_that_kills_its_workers(self) -> None:
        run = make_run()
        for _ in range(3):
            lifecycle.claim(run.pk, "dead")
            AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))

        assert drive(run).error_type == "poison_step"
        assert [violation for violation in check() if not violation.warning_only] == []


def at_point(name: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, hit: int = 1) -> None:
    """Do `act` where a process of the crash tests would be killed: at the hit of that number."""
    hits = []

    def point(reached: str) -> None:
        if reached == name:
            hits.append(reached)
            if len(hits) == hit:
                act()

    monkeypatch.setattr(chaos, "point", point)


def with_open_calls(monkeypatch: pytest.MonkeyPatch) -> AgentRun:
    """A queued run in the middle of its turn: a worker handed it back between the start of a call and its end."""
    run = make_run(make_agent(fixture=FIXTURE))

    def let_go() -> None:
        raise LetGo

    at_point("CP16", let_go, monkeypatch)
    worker = Worker(concurrency=1)
    worker.drive(run.pk)
    worker.close(5)
    run.refresh_from_db()
    assert run.status == RunStatus.QUEUED
    return run


def recovered(run: AgentRun) -> AgentRun:
    """The run, completed by a second worker after the first one died right after its claim."""
    lifecycle.claim(run.pk, "dead")
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    return drive(run)


def shortened(name: str, *, calls: int) -> str:
    recording = json.loads(find(name).read_text())
    return json.dumps({**recording, "calls": recording["calls"][:calls]})


# --- Each invariant turns red -----------------------------------------------------------------------------------


@dataclass
class World:
    """Clean rows of many kinds, and the ids that the corruptions below speak of."""

    ids: dict[str, Any] = field(default_factory=dict)

    def spoil(self, *statements: str) -> None:
        with open_door("a test spoils the log"), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement, self.ids)


@pytest.fixture
def world(db: None) -> World:
    run = drive(make_run())
    old = drive(make_run(make_agent(max_steps=2)))
    new = drive(resume(old.pk, by="test").run)
    running = make_run()
    lifecycle.claim(running.pk, "test")
    inbox.pause(running.pk, by="test")
    elsewhere = make_run()
    call = AgentRunToolCall.objects.filter(run=run).order_by("id")[2]
    messages = AgentRunMessage.objects.filter(run=run).order_by("position")
    uuids = {
        "run": run.pk,
        "old": old.pk,
        "new": new.pk,
        "running": running.pk,
        "recovered": recovered(make_run()).pk,
        "elsewhere": elsewhere.pk,
        "other_project": elsewhere.project_id,
        "call": call.pk,
        "asked_by": call.message_id,
        "result": call.result_message_id,
        "user": messages.filter(role="user")[0].pk,
        "last_message": messages.reverse()[0].pk,
        "fresh": uuid7(),
    }
    field_ = AgentRunMessage._meta.pk
    ids: dict[str, Any] = {name: field_.get_db_prep_value(value, connection) for name, value in uuids.items()}
    ids["last"] = Event.objects.filter(log=run.pk).count()
    ids["last_recovered"] = Event.objects.filter(log=uuids["recovered"], source="worker").latest("seq").seq
    ids["long_ago"] = connection.ops.adapt_datetimefield_value(timezone.now() - timedelta(hours=1))
    assert check() == []
    return World(ids)


class Spoilt(NamedTuple):
    """What is done to the clean rows; the invariant that must find it, and the others that see it too."""

    name: str
    statements: tuple[str, ...]
    also: str = ""


EVENT = "UPDATE agent_run_events SET {} WHERE log_id = %(run)s AND seq = %(last)s"
STARTED = "UPDATE agent_run_events SET {} WHERE log_id = %(run)s AND type = 'run.started'"
OF_CALL = "UPDATE agent_run_events SET type = 'error' WHERE log_id = %(run)s AND ref_id = %(call)s AND type = '{}'"
CALL = "UPDATE agent_run_tool_calls SET {} WHERE id = %(call)s"
RUN = "UPDATE agent_runs SET {} WHERE id = %(run)s"
NEW = "UPDATE agent_runs SET {} WHERE id = %(new)s"
RUNNING = "UPDATE agent_runs SET {} WHERE id = %(running)s"
MESSAGE = "UPDATE agent_run_messages SET {} WHERE id = {}"
LAST_CHECKPOINT = (
    "FROM agent_run_checkpoints WHERE run_id = %(run)s AND step_number = "
    "(SELECT MAX(step_number) FROM agent_run_checkpoints WHERE run_id = %(run)s)"
)
ONE_MORE_EVENT = (
    "INSERT INTO agent_run_events (log_id, seq, event_id, run_kind, phase, type, ts, node_id, payload, source, late,"
    " sanitized, created_at) SELECT log_id, seq + 1, 'more', run_kind, phase, 'error', ts, node_id, payload, 'web',"
    " late, sanitized, created_at FROM agent_run_events WHERE log_id = %(run)s AND seq = %(last)s",
    "UPDATE timeline_log SET last_seq = last_seq + 1 WHERE id = %(run)s",
)

SPOILT = [
    Spoilt("E1", (EVENT.format("seq = seq + 1"), ONE_MORE_EVENT[1])),
    Spoilt("E2", (ONE_MORE_EVENT[1],)),
    Spoilt("E4", (EVENT.replace("%(last)s", "1").format("type = 'error'"),)),
    Spoilt("E4", (STARTED.format("type = 'run.created'"),)),
    Spoilt("E5", (EVENT.format("type = 'error'"),)),
    Spoilt("E5", (EVENT.format("type = 'run.failed'"),)),
    Spoilt("E5", (STARTED.format("type = 'run.stopped'"),), "E6"),
    Spoilt("E6", ONE_MORE_EVENT),
    Spoilt(
        "E7",
        ("UPDATE agent_run_events SET epoch = 1 WHERE log_id = %(recovered)s AND seq = %(last_recovered)s",),
    ),
    Spoilt("E8a", ("UPDATE agent_run_events SET type = 'error' WHERE ref_id = %(user)s",)),
    Spoilt("E8b", (STARTED.format("type = 'message.added'"),)),
    Spoilt("E8b", (STARTED.format("type = 'message.added', ref_id = %(fresh)s"),)),
    Spoilt("E9a", (OF_CALL.format("tool.end"),)),
    Spoilt("E9b", (OF_CALL.format("tool.start"),)),
    Spoilt("E9a foreign", (RUN.format("source = 'external'"), OF_CALL.format("tool.end"))),
    Spoilt("E9b foreign", (RUN.format("source = 'external'"), OF_CALL.format("tool.start"))),
    Spoilt("E10", (STARTED.format("type = 'llm.turn.start'"),)),
    Spoilt("M1", (MESSAGE.format("position = position + 1", "%(last_message)s"),), "C2a"),
    Spoilt(
        "M3",
        (CALL.format("status = 'planned', starts = 0, started_at = NULL, finished_at = NULL"),),
        "E9a E9b C2b T6",
    ),
    Spoilt("M4", (CALL.format("result_message_id = NULL"),), "M5"),
    Spoilt("M4", (MESSAGE.format("step_number = step_number + 1", "%(result)s"),)),
    Spoilt("M5", (MESSAGE.format("role = 'tool_result'", "%(user)s"),)),
    Spoilt("M6", (MESSAGE.format("rolled_back_at = %(long_ago)s", "%(user)s"),)),
    Spoilt("M7", (MESSAGE.format("rolled_back_at = %(long_ago)s", "%(asked_by)s"),), "M6 R3"),
    Spoilt("M8", (CALL.format("call_id = 'other'"),)),
    Spoilt("M8", (CALL.format("message_id = %(last_message)s"),), "T1"),
    Spoilt("T1", (CALL.format("step_number = step_number + 1"),), "M4"),
    Spoilt("T1", (CALL.format("run_id = %(old)s"),), "E9a E9b M4"),
    Spoilt("T2b", (CALL.format("effect = 'idempotent'"),)),
    Spoilt(
        "T3",
        (CALL.format("effect = 'at_most_once', starts = 2"), STARTED.format("type = 'tool.start', ref_id = %(call)s")),
    ),
    Spoilt("T4", (CALL.format("finished_at = NULL"),)),
    Spoilt("T4", (CALL.format("finished_at = %(long_ago)s"),)),
    Spoilt("T4", (CALL.format("status = 'denied', started_at = NULL"),), "T5"),
    Spoilt("T5", (CALL.format("status = 'denied', starts = 0"), OF_CALL.format("tool.start"))),
    Spoilt(
        "T6",
        (
            CALL.format("status = 'unknown', result_message_id = NULL"),
            OF_CALL.format("tool.end"),
            "UPDATE agent_run_messages SET role = 'user' WHERE id = %(result)s",
        ),
        "M3 C2b T7",
    ),
    Spoilt(
        "T7",
        (
            CALL.format("status = 'unknown', result_message_id = NULL"),
            OF_CALL.format("tool.end"),
            "UPDATE agent_run_messages SET role = 'user' WHERE id = %(result)s",
        ),
        "M3 C2b T6",
    ),
    Spoilt(
        "T6 foreign",
        (
            RUN.format("source = 'external'"),
            CALL.format("status = 'unknown', result_message_id = NULL"),
            OF_CALL.format("tool.end"),
            "UPDATE agent_run_messages SET role = 'user' WHERE id = %(result)s",
        ),
    ),
    Spoilt(
        "C1",
        ("UPDATE agent_run_checkpoints SET last_message_position = 1 WHERE run_id = %(run)s AND step_number = 2",),
    ),
    Spoilt(
        "C2a",
        (
            "UPDATE agent_run_checkpoints SET last_message_position = 9999 WHERE id IN (SELECT id "
            f"{LAST_CHECKPOINT})",
        ),
    ),
    Spoilt(
        "C2b",
        (CALL.format("status = 'running', result_message_id = NULL"),),
        "E9a M3 M5 T6",
    ),
    Spoilt("C3", (f"DELETE {LAST_CHECKPOINT}",)),
    Spoilt("R1b", (NEW.format("project_id = %(other_project)s"),)),
    Spoilt("R1b", ("UPDATE agent_runs SET status = 'paused', completed_at = NULL WHERE id = %(old)s",), "E5"),
    Spoilt("R1c", (NEW.format("resumed_from_id = NULL"),), "R2b R5"),
    Spoilt("R2a", (NEW.format("step_base = step_base - 1"),), "R2b R3"),
    Spoilt("R2b", (RUN.format("max_steps = 1"),)),
    Spoilt("R2b", (NEW.format("step_count = 501, max_steps = 501"),), "R3"),
    Spoilt("R3", (RUNNING.format("step_count = 1"),)),
    Spoilt("R4b", (NEW.format("parent_run_id = %(elsewhere)s"),)),
    Spoilt("R4c", (RUN.format("parent_run_id = id"),)),
    Spoilt("R4c", (RUN.format("parent_run_id = %(elsewhere)s, project_id = %(other_project)s"),
                   "UPDATE agent_runs SET forked_from_id = %(run)s WHERE id = %(elsewhere)s"), "R6"),
    Spoilt("R5", (NEW.format("root_run_id = id"),)),
    Spoilt("R5", (RUN.format("root_run_id = %(old)s"),)),
    Spoilt("R6", (RUN.format("forked_from_id = %(old)s"),)),
    Spoilt("R6", (RUN.format("forked_from_id = %(old)s, forked_at_step = 1"),)),
    Spoilt("R6", (RUN.format("forked_at_step = 1"),)),
    Spoilt("L1", (RUNNING.format("lease_expires_at = NULL"),)),
    Spoilt("L2", ("UPDATE agent_run_attempts SET ended_at = NULL WHERE run_id = %(run)s",)),
    Spoilt("L2", ("UPDATE agent_run_attempts SET ended_at = %(long_ago)s WHERE run_id = %(running)s",)),
    Spoilt("L2", ("DELETE FROM agent_run_attempts WHERE run_id = %(running)s",), "L3"),
    Spoilt("L3", (MESSAGE.format("epoch = 99", "%(last_message)s"),)),
    Spoilt("L3", (EVENT.format("epoch = 99"),)),
    Spoilt("L3", ("UPDATE agent_run_checkpoints SET epoch = 99 WHERE run_id = %(run)s AND step_number = 2",)),
    Spoilt("L4", (RUNNING.format("lease_expires_at = %(long_ago)s"),)),
    Spoilt("L5", ("UPDATE timeline_log SET epoch = epoch + 1 WHERE id = %(run)s",)),
    Spoilt("L6", ("DELETE FROM agent_run_attempts WHERE run_id = %(recovered)s AND epoch = 1",), "L3"),
    Spoilt("X1", (
        "INSERT INTO timeline_tombstone (id, project_id, family, facts, created_at, reason, removed_by, removed_at,"
        " rows, finished_at) SELECT id, project_id, id, CAST('{}' AS jsonb), created_at, '', '', created_at,"
        " CAST('{}' AS jsonb), created_at FROM agent_runs WHERE id = %(run)s",
    )),
    Spoilt("X2", (RUN.format("removed_at = %(long_ago)s"),)),
    Spoilt("O1", ("UPDATE agent_run_commands SET received_at = %(long_ago)s WHERE run_id = %(running)s",)),
    Spoilt("W6", ("UPDATE agent_run_messages SET content = (SELECT content FROM agent_run_messages WHERE id = "
                  "%(user)s) WHERE id = %(result)s",)),
]  # fmt: skip


@pytest.mark.parametrize("spoilt", SPOILT, ids=lambda spoilt: spoilt.name)
def test_it_sees_what_was_spoilt(world: World, spoilt: Spoilt) -> None:
    world.spoil(*spoilt.statements)

    assert red() == {spoilt.name, *spoilt.also.split()}


class Refused(NamedTuple):
    """What a constraint of the database keeps from happening, and the name of that constraint (or unique index)."""

    name: str
    statement: str
    table: str
    constraint: str


REFUSED = [
    Refused("E3", "UPDATE agent_run_events SET event_id = 'same' WHERE log_id = %(run)s",
            "agent_run_events", "event_id_once"),
    Refused("E1", "UPDATE agent_run_events SET seq = 1 WHERE log_id = %(run)s AND seq = 2",
            "agent_run_events", "event_seq_once"),
    Refused("M1", MESSAGE.format("position = 1", "%(last_message)s"), "agent_run_messages", "message_position_once"),
    Refused("M2", MESSAGE.format("step_number = 1", "%(last_message)s"), "agent_run_messages",
            "message_one_answer_per_step"),
    Refused("T2a", "UPDATE agent_run_tool_calls SET idempotency_key = 'same' WHERE run_id = %(run)s",
            "agent_run_tool_calls", "tool_call_idempotency_key_once"),
    Refused("T4", CALL.format("starts = 0"), "agent_run_tool_calls", "tool_call_started_before_running"),
    Refused("R1a", "UPDATE agent_runs SET resumed_from_id = %(old)s WHERE id = %(run)s",
            "agent_runs", "agent_runs_resumed_from_id_key"),
    Refused("R4a", RUN.format("completed_at = NULL"), "agent_runs", "run_terminal_has_completed_at"),
    Refused("L1", RUNNING.format("lease_owner = NULL"), "agent_runs", "run_lease_while_running"),
]  # fmt: skip


@contextmanager
def let_pass(refused: Refused) -> Iterator[bool]:
    """Take the constraint away for the block, where the database can; false where it cannot."""
    with connection.cursor() as cursor:
        about = connection.introspection.get_constraints(cursor, refused.table).get(refused.constraint, {})
        if connection.vendor == "sqlite":
            cursor.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = %s", [refused.constraint])
            is_index = cursor.fetchone() is not None
            if is_index:
                cursor.execute(f"DROP INDEX {refused.constraint}")
            cursor.execute("PRAGMA ignore_check_constraints = ON")
            try:
                yield is_index or bool(about.get("check"))
            finally:
                cursor.execute("PRAGMA ignore_check_constraints = OFF")
            return
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SELECT 1 FROM pg_constraint WHERE conname = %s", [refused.constraint])
        is_constraint = cursor.fetchone() is not None
        drop = f"ALTER TABLE {refused.table} DROP CONSTRAINT" if is_constraint else "DROP INDEX"
        cursor.execute(f"{drop} {refused.constraint}")
        yield True


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.name)
def test_it_sees_what_the_database_refuses(world: World, refused: Refused) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        world.spoil(refused.statement)
    assert check() == []

    with let_pass(refused) as passes:
        if passes:
            world.spoil(refused.statement)
            assert refused.name in red()


def test_each_invariant_was_seen_red() -> None:
    assert {invariant.name for invariant in INVARIANTS} == {case.name for case in [*SPOILT, *REFUSED]}
    assert len({invariant.name for invariant in INVARIANTS}) == len(INVARIANTS)


# --- What is allowed --------------------------------------------------------------------------------------------


def test_it_allows_a_second_start_that_someone_chose(world: World) -> None:
    world.spoil(
        CALL.format("effect = 'at_most_once', starts = 2"),
        STARTED.format("type = 'tool.start', ref_id = %(call)s"),
        "UPDATE agent_run_events SET type = 'approval.resolved', ref_id = %(call)s, late = late "
        "WHERE log_id = %(run)s AND type = 'llm.turn.end' AND step = 2",
    )

    assert red() == {"E10"}


@pytest.mark.parametrize("why", ["safety.block", "approval.resolved"])
def test_it_allows_a_denial_that_is_explained(world: World, why: str) -> None:
    world.spoil(
        CALL.format("status = 'denied', starts = 0"),
        OF_CALL.format("tool.start").replace("'error'", f"'{why}'"),
    )

    assert check() == []


def test_it_lets_late_events_follow_the_end(world: World) -> None:
    late = [ONE_MORE_EVENT[0].replace(" late,", " NOT late,", 2).replace("NOT late,", "late,", 1), ONE_MORE_EVENT[1]]
    world.spoil(*late)

    assert check() == []


def test_it_speaks_only_of_native_runs_where_it_must(world: World) -> None:
    world.spoil(
        RUN.format("source = 'import', lease_epoch = 7, step_base = 1, max_steps = 1, step_count = step_count + 1"),
        "DELETE FROM agent_run_checkpoints WHERE run_id = %(run)s",
    )

    assert check() == []


# --- The answer -------------------------------------------------------------------------------------------------


def test_it_names_the_rows(world: World) -> None:
    world.spoil(CALL.format("call_id = 'other'"), EVENT.format("epoch = 99"))
    run, asked_by = (UUID(str(world.ids[name])) for name in ("run", "asked_by"))

    found = {violation.invariant: violation for violation in check()}

    assert found["M8"].ids == (f"{run}/{asked_by}",)
    assert found["L3"].ids == (f"{run}/event {world.ids['last']}",)
    assert not found["L3"].more


def test_it_looks_at_one_run_alone(world: World) -> None:
    world.spoil(CALL.format("call_id = 'other'"), NEW.format("root_run_id = id"), RUN.format("max_steps = 1"))
    run, new, old = (UUID(str(world.ids[name])) for name in ("run", "new", "old"))

    assert (red(run), red(new), red(old)) == ({"M8", "R2b"}, {"R5"}, set())


def test_it_lists_so_many_and_says_that_there_are_more(db: None) -> None:
    for _ in range(LISTED + 1):
        make_log()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE timeline_log SET last_seq = 1")

    [violation] = check()

    assert (len(violation.ids), violation.more) == (LISTED, True)


@pytest.mark.django_db(transaction=True)
def test_it_reads_one_state_and_keeps_nobody_from_writing() -> None:
    with snapshot():
        before = Event.objects.count()
        writer = threading.Thread(target=make_and_close)
        writer.start()
        writer.join(10)
        assert not writer.is_alive()
        assert Event.objects.count() == before
    assert Event.objects.count() > before


def make_and_close() -> None:
    try:
        make_run()
    finally:
        connection.close()


# --- The command ------------------------------------------------------------------------------------------------


def told(*args: str) -> tuple[str, int]:
    out = StringIO()
    try:
        call_command("check_invariants", *args, stdout=out)
    except CommandError as error:
        return out.getvalue(), error.returncode
    return out.getvalue(), 0


def test_the_command_is_quiet_about_a_good_database(world: World) -> None:
    assert told() == ("All invariants hold.\n", 0)
    assert told("--json") == ("[]\n", 0)


def test_the_command_tells_what_is_broken(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))
    run = UUID(str(world.ids["run"]))

    text, code = told("--run", str(run))

    assert code == 1
    assert "R2b: not true that a run keeps to its own step budget" in text
    assert str(run) in text


def test_the_command_tells_programs_too(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))

    text, code = told("--json")

    assert code == 1
    assert [(v["invariant"], v["ids"]) for v in json.loads(text)] == [("R2b", [str(UUID(str(world.ids["run"])))])]


def test_the_command_ends_well_with_warnings(world: World) -> None:
    world.spoil(RUN.format("source = 'external'"))
    world.spoil(OF_CALL.format("tool.end"))

    text, code = told()

    assert (code, "(a warning)" in text) == (0, True)


def test_the_command_knows_what_it_does_not_know(db: None) -> None:
    assert told("--run", str(uuid7()))[1] == 3


def test_a_violation_says_what_should_be_true(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))

    assert check() == [
        Violation(
            "R2b",
            (str(UUID(str(world.ids["run"]))),),
            "a run keeps to its own step budget and to the cap of its lineage",
        )
    ]
