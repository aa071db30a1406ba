"""Each invariant fails for corrupted rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from django.db import IntegrityError, connection, transaction

from runs.upkeep.invariants import INVARIANTS, check
from tests.support.upkeep import (
    CALL,
    EVENT,
    FLOW_EVENT,
    FORKED,
    LAST_CHECKPOINT,
    MESSAGE,
    NEW,
    OF_CALL,
    OF_OUTSIDE_CALL,
    ONE_MORE_EVENT,
    OUTSIDE,
    OUTSIDE_CALL,
    OUTSIDE_USAGE,
    RUN,
    RUNNING,
    STARTED,
    STEP,
    VISIT,
    World,
    red,
)


class Spoilt(NamedTuple):
    """A corruption of the clean rows; the invariant that must detect it, and others that detect it too."""

    name: str
    statements: tuple[str, ...]
    also: str = ""


#: Content of an answer as if it had been refused.
REFUSED_CONTENT = {
    "postgresql": """jsonb_set(content, '{finish_reason}', '"content_filter"')""",
    "sqlite": "json_set(content, '$.finish_reason', 'content_filter')",
}[connection.vendor]
SPOILT = [
    Spoilt("F1", (FLOW_EVENT.format("error", "run.created"),)),
    Spoilt("F2", (FLOW_EVENT.format("run.failed", "run.completed"),)),
    Spoilt("F3", (FLOW_EVENT.format("error", "flow.completed"),)),
    Spoilt("F4", (VISIT.format("ended_at = NULL", "%(flow)s"),)),
    Spoilt("F5", (VISIT.format("session_id = NULL", "%(open_flow)s"),), "F7"),
    Spoilt("F6", ("UPDATE agent_runs SET flow_run_id = NULL WHERE flow_run_id = %(open_flow)s",)),
    Spoilt("F7", (RUN.format("flow_run_id = %(flow)s"),)),
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
    Spoilt("E9a", (OF_OUTSIDE_CALL.format("tool.end"),)),
    Spoilt("E9b", (OF_OUTSIDE_CALL.format("tool.start"),)),
    Spoilt("E10", (STARTED.format("type = 'llm.turn.start'"),)),
    Spoilt(
        "E11",
        ("UPDATE agent_run_events SET type = 'budget.warning' WHERE log_id = %(out_of_steps)s AND type = 'error'",),
    ),
    Spoilt("E12", (EVENT.format("node_id = ''"),)),
    Spoilt("M1", (MESSAGE.format("position = position + 1", "%(last_message)s"),), "C2a"),
    Spoilt(
        "M3",
        (CALL.format("status = 'planned', starts = 0, started_at = NULL, finished_at = NULL"),),
        "E9a E9b C2b T6",
    ),
    Spoilt("M4", (CALL.format("result_message_id = NULL"),), "M5 T8"),
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
        "T6",
        (
            OUTSIDE_CALL.format("status = 'running', result_message_id = NULL"),
            OF_OUTSIDE_CALL.format("tool.end"),
            "UPDATE agent_run_messages SET role = 'user' WHERE run_id = %(outside)s AND role = 'tool_result'",
        ),
    ),
    Spoilt("T8", (CALL.format("output = NULL, result_message_id = NULL"),), "M4 M5"),
    Spoilt("T8", (OUTSIDE_CALL.format("output = NULL, result_message_id = NULL"),), "M4 M5"),
    Spoilt("T9", ("UPDATE agent_runs SET status_reason = 'input' WHERE id = %(asking)s",)),
    Spoilt(
        "T9", ("UPDATE agent_run_approvals SET state = 'cancelled', decided_at = created_at WHERE run_id = %(asking)s",)
    ),
    Spoilt(
        "T10",
        (
            MESSAGE.format(f"content = {REFUSED_CONTENT}", "%(asked_by)s"),
            STARTED.format("""payload = '{"error_type": "answer_refused"}'"""),
        ),
        "W6",
    ),
    Spoilt(
        "C1",
        ("UPDATE agent_run_checkpoints SET last_message_position = 1 WHERE run_id = %(run)s AND step_number = 2",),
    ),
    Spoilt(
        "C2a",
        (f"UPDATE agent_run_checkpoints SET last_message_position = 9999 WHERE id IN (SELECT id {LAST_CHECKPOINT})",),
    ),
    Spoilt(
        "C2b",
        (CALL.format("status = 'running', result_message_id = NULL"),),
        "E9a M3 M5 T6",
    ),
    Spoilt("C3", (f"DELETE {LAST_CHECKPOINT}",)),
    Spoilt("R1b", (NEW.format("project_id = %(other_project)s"),)),
    Spoilt(
        "R1b",
        ("UPDATE agent_runs SET status = 'paused', status_reason = 'error', completed_at = NULL WHERE id = %(old)s",),
        "E5",
    ),
    Spoilt("R1c", (NEW.format("resumed_from_id = NULL"),), "R2b R5"),
    Spoilt("R2a", (NEW.format("step_base = step_base - 1"),), "R2b R3"),
    Spoilt("R2b", (RUN.format("max_steps = 1"),)),
    Spoilt("R2b", (NEW.format("step_count = 501, max_steps = 501"),), "R3"),
    Spoilt("R3", (RUNNING.format("step_count = 1"),)),
    Spoilt("R4b", (NEW.format("parent_run_id = %(elsewhere)s"),)),
    Spoilt("R4c", (RUN.format("parent_run_id = id"),), "R4e"),
    Spoilt(
        "R4c",
        (
            RUN.format("parent_run_id = %(elsewhere)s, project_id = %(other_project)s"),
            "UPDATE agent_runs SET forked_from_id = %(run)s WHERE id = %(elsewhere)s",
        ),
        "R4e R6",
    ),
    Spoilt("R4d", ("UPDATE agent_runs SET parent_run_id = NULL WHERE id = %(child)s",)),
    Spoilt("R4e", ("UPDATE agent_run_events SET type = 'context.trimmed' WHERE ref_id = %(child)s",)),
    Spoilt("R4f", ("UPDATE agent_runs SET status = 'waiting', status_reason = 'children' WHERE id = %(paused)s",)),
    Spoilt("R5", (NEW.format("root_run_id = id"),)),
    Spoilt("R5", (RUN.format("root_run_id = %(old)s"),)),
    Spoilt("R6", (RUN.format("forked_from_id = %(old)s"),)),
    Spoilt("R6", (RUN.format("forked_from_id = %(old)s, forked_at_step = 1"),)),
    Spoilt("R6", (RUN.format("forked_at_step = 1"),)),
    Spoilt("R6", (FORKED.format("step_base = 2, step_count = step_count + 1"),)),
    Spoilt("R6", (FORKED.format("project_id = %(other_project)s"),)),
    Spoilt("R6 foreign", (OUTSIDE.format("forked_at_step = 1"),)),
    Spoilt("R6 foreign", (OUTSIDE.format("forked_from_id = %(elsewhere)s"),)),
    Spoilt("R7", (NEW.format("forked_from_id = %(old)s, forked_at_step = step_base"),)),
    Spoilt("R8", ("UPDATE agent_runs SET status_reason = '' WHERE id = %(paused)s",)),
    Spoilt("R8", ("UPDATE agent_runs SET status = 'waiting', status_reason = 'max_steps' WHERE id = %(paused)s",)),
    Spoilt("R8", ("UPDATE agent_runs SET status = 'waiting', status_reason = 'cooldown' WHERE id = %(paused)s",)),
    Spoilt("R9", ("UPDATE agent_runs SET status_reason = 'answer_cut' WHERE id = %(paused)s",)),
    Spoilt("R9", ("UPDATE agent_runs SET status_reason = 'answer_refused' WHERE id = %(out_of_steps)s",)),
    Spoilt("U1", ("DELETE FROM agent_run_turn_usages WHERE run_id = %(run)s AND step_number = 2",), "U2"),
    Spoilt("U2", (RUN.format("input_tokens = input_tokens + 1"),)),
    Spoilt("U2", (RUN.format("cost_usd = 1"),)),
    Spoilt(
        "U2",
        (
            "UPDATE agent_run_turn_usages SET cost_usd = 1 WHERE run_id = %(run)s AND step_number = 2",
            RUN.format("cost_usd = 2"),
        ),
    ),
    Spoilt("U1 foreign", (OUTSIDE_USAGE.format("step_number = 7"),)),
    Spoilt("U2 foreign", (OUTSIDE.format("input_tokens = input_tokens + 1"),)),
    Spoilt("U2 foreign", (OUTSIDE_USAGE.format("reasoning_tokens = 1"),)),
    Spoilt("U2 foreign", (OUTSIDE.format("cost_usd = NULL"),)),
    Spoilt("U2 foreign", (OUTSIDE.format("cost_source = 'computed', cost_usd = 1"),)),
    Spoilt("U3", (OUTSIDE_USAGE.format("cost_usd = 0.01"), OUTSIDE.format("cost_source = 'reported', cost_usd = 1"))),
    Spoilt(
        "U4",
        ("UPDATE agent_run_turn_usages SET call = %(run)s WHERE step_number = 2 AND run_id IN (%(run)s, %(outside)s)",),
    ),
    Spoilt("J1", (STEP.format("position = 99", 1),)),
    Spoilt("J1", ("UPDATE agent_runs SET code_version = NULL WHERE id = %(remote)s",), "U1"),
    Spoilt("J2", (STEP.format("value = NULL", 2),)),
    Spoilt("J2", (STEP.format("error = NULL", 8),)),
    Spoilt("J2", (STEP.format("state = 'started'", 2),)),
    Spoilt("J2", (STEP.format("finished_at = NULL", 2),)),
    Spoilt("J2", (STEP.format("pieces = 1", 2),), "J3"),
    Spoilt("J3", ('DELETE FROM agent_run_remote_step_pieces WHERE run_id = %(remote)s AND "index" = 1',)),
    Spoilt("J4", (STEP.format("call_id = NULL", 2),)),
    Spoilt("J4", (STEP.format("kind = 'model'", 2),)),
    Spoilt("J4", (STEP.format("call_id = %(call)s", 2),)),
    Spoilt(
        "J5",
        (
            STEP.format("call_id = (SELECT id FROM agent_run_tool_calls WHERE run_id = %(asking)s LIMIT 1)", 2),
            "UPDATE agent_run_remote_steps SET run_id = %(asking)s, position = 1, epoch = 1 WHERE run_id = %(remote)s"
            " AND position = 2",
        ),
        "J1",
    ),
    Spoilt("L1", (RUNNING.format("lease_expires_at = NULL"),)),
    Spoilt("L2", ("UPDATE agent_run_attempts SET ended_at = NULL WHERE run_id = %(run)s",)),
    Spoilt("L2", ("UPDATE agent_run_attempts SET ended_at = %(long_ago)s WHERE run_id = %(running)s",)),
    Spoilt("L2", ("DELETE FROM agent_run_attempts WHERE run_id = %(running)s",), "L3"),
    Spoilt("L3", (MESSAGE.format("epoch = 99", "%(last_message)s"),)),
    Spoilt("L3", (EVENT.format("epoch = 99"),)),
    Spoilt("L3", (STEP.format("epoch = 99", 2),)),
    Spoilt("L3", ("UPDATE agent_run_checkpoints SET epoch = 99 WHERE run_id = %(run)s AND step_number = 2",)),
    Spoilt("L4", (RUNNING.format("lease_expires_at = %(long_ago)s"),)),
    Spoilt("L5", ("UPDATE timeline_log SET epoch = epoch + 1 WHERE id = %(run)s",)),
    Spoilt("L6", ("DELETE FROM agent_run_attempts WHERE run_id = %(recovered)s AND epoch = 1",), "L3"),
    Spoilt("L7", (OUTSIDE.format("lease_epoch = 1"),)),
    Spoilt("L7", ("UPDATE agent_run_events SET source = 'worker' WHERE log_id = %(outside)s AND seq = 3",)),
    Spoilt(
        "L7",
        ("UPDATE agent_run_checkpoints SET run_id = %(outside)s WHERE run_id = %(recovered)s AND step_number = 1",),
        "L3",
    ),
    Spoilt(
        "X1",
        (
            "INSERT INTO timeline_tombstone (id, project_id, family, facts, created_at, reason, removed_by, removed_at,"
            " rows, finished_at) SELECT id, project_id, id, CAST('{}' AS jsonb), created_at, '', '', created_at,"
            " CAST('{}' AS jsonb), created_at FROM agent_runs WHERE id = %(run)s",
        ),
    ),
    Spoilt("X2", (RUN.format("removed_at = %(long_ago)s"),)),
    Spoilt("O1", ("UPDATE agent_run_commands SET received_at = %(long_ago)s WHERE run_id = %(running)s",)),
    Spoilt("O2", ("UPDATE agent_run_commands SET run_id = %(run)s WHERE run_id = %(running)s",)),
    # An open pause of a run that is already paused: no worker will execute it.
    Spoilt("O2", ("UPDATE agent_run_commands SET run_id = %(paused)s WHERE run_id = %(running)s",)),
    Spoilt(
        "W6",
        (
            "UPDATE agent_run_messages SET content = (SELECT content FROM agent_run_messages WHERE id = "
            "%(user)s) WHERE id = %(result)s",
        ),
    ),
]


@pytest.mark.parametrize("spoilt", SPOILT, ids=lambda spoilt: spoilt.name)
def test_corrupted_rows_are_detected(world: World, spoilt: Spoilt) -> None:
    world.spoil(*spoilt.statements)

    assert red() == {spoilt.name, *spoilt.also.split()}


#: Rows whose owner does not exist. On SQLite, foreign keys refuse them.
ORPHANS = [
    Spoilt("E13", (MESSAGE.format("run_id = id", "%(last_message)s"),)),
    Spoilt("E13", ("UPDATE agent_run_checkpoints SET run_id = id WHERE id = (SELECT id " + LAST_CHECKPOINT + ")",)),
    Spoilt("E13", (CALL.format("message_id = id"),)),
    Spoilt("E13", ("DELETE FROM timeline_log WHERE id = %(run)s",)),
]


@pytest.mark.postgres
@pytest.mark.parametrize("spoilt", ORPHANS)
def test_rows_without_an_owner_are_detected(world: World, spoilt: Spoilt) -> None:
    world.spoil(*spoilt.statements)

    assert spoilt.name in red()


class Refused(NamedTuple):
    """A corruption that a database constraint prevents, and the name of that constraint (or unique index)."""

    name: str
    statement: str
    table: str
    constraint: str


REFUSED = [
    Refused(
        "E3",
        "UPDATE agent_run_events SET event_id = 'same' WHERE log_id = %(run)s",
        "agent_run_events",
        "event_id_once",
    ),
    Refused(
        "E1",
        "UPDATE agent_run_events SET seq = 1 WHERE log_id = %(run)s AND seq = 2",
        "agent_run_events",
        "event_seq_once",
    ),
    Refused("M1", MESSAGE.format("position = 1", "%(last_message)s"), "agent_run_messages", "message_position_once"),
    Refused(
        "M2", MESSAGE.format("step_number = 1", "%(last_message)s"), "agent_run_messages", "message_one_answer_per_step"
    ),
    Refused(
        "T2a",
        "UPDATE agent_run_tool_calls SET idempotency_key = 'same' WHERE run_id = %(run)s",
        "agent_run_tool_calls",
        "tool_call_idempotency_key_once",
    ),
    Refused("T4", CALL.format("starts = 0"), "agent_run_tool_calls", "tool_call_started_before_running"),
    Refused(
        "R1a",
        "UPDATE agent_runs SET resumed_from_id = %(old)s WHERE id = %(run)s",
        "agent_runs",
        "agent_runs_resumed_from_id_key",
    ),
    Refused("R4a", RUN.format("completed_at = NULL"), "agent_runs", "run_terminal_has_completed_at"),
    Refused("L1", RUNNING.format("lease_owner = NULL"), "agent_runs", "run_lease_while_running"),
]


@contextmanager
def let_pass(refused: Refused) -> Iterator[bool]:
    """Remove the constraint during the block, where the database supports it; yield False where it does not."""
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
def test_corruptions_refused_by_the_database_are_detected_too(world: World, refused: Refused) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        world.spoil(refused.statement)
    assert check() == []

    with let_pass(refused) as passes:
        if passes:
            world.spoil(refused.statement)
            assert refused.name in red()


def test_each_invariant_has_failed_once() -> None:
    assert {invariant.name for invariant in INVARIANTS} == {case.name for case in [*SPOILT, *ORPHANS, *REFUSED]}
    assert len({invariant.name for invariant in INVARIANTS}) == len(INVARIANTS)
