"""Checks all invariants and reports the violated ones. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from agentops.base.database.applied_migrations import UnusableSchema, missing_migrations
from runs.upkeep.invariants.invariant import Invariant, Violation
from runs.upkeep.invariants.invariant_sql import LISTED, CheckTimedOut, Clock, find_violations, snapshot
from runs.upkeep.invariants.log_invariants import LOG_INVARIANTS
from runs.upkeep.invariants.message_content import check_message_contents
from runs.upkeep.invariants.run_invariants import RUN_INVARIANTS
from runs.upkeep.invariants.tool_call_invariants import TOOL_CALL_INVARIANTS

FLOW_INVARIANTS: tuple[Invariant, ...] = (
    Invariant("F1", "the first event of a flow run, and no other, is run.created", """
        SELECT f.id, e.seq FROM flow_rows f
        LEFT JOIN events e ON e.run_id = f.id AND (e.seq = 1 OR e.type = 'run.created')
        WHERE e.seq IS NULL OR e.seq <> 1 OR e.type <> 'run.created'"""),
    Invariant("F2", "a flow run that ended has exactly one final event, matching its status; others have none", """
        SELECT f.id FROM flow_rows f LEFT JOIN endings e ON e.run_id = f.id
        WHERE COALESCE(e.n, 0) <> CASE WHEN f.ended THEN 1 ELSE 0 END OR e.type <> 'run.' || f.status"""),
    Invariant("F3", "a flow starts at most once, and completes exactly when its run has ended", """
        SELECT f.id FROM flow_rows f
        LEFT JOIN (SELECT run_id, SUM(CASE WHEN type = 'flow.started' THEN 1 ELSE 0 END) AS starts,
            SUM(CASE WHEN type = 'flow.completed' THEN 1 ELSE 0 END) AS ends
            FROM events WHERE type IN ('flow.started', 'flow.completed') GROUP BY run_id) e ON e.run_id = f.id
        WHERE COALESCE(e.starts, 0) > 1 OR COALESCE(e.ends, 0) <> CASE WHEN f.ended THEN 1 ELSE 0 END"""),
    Invariant("F4", "a flow run that ended has no open visits", """
        SELECT f.id, v.id FROM flow_rows f JOIN visits v ON v.flow_run_id = f.id
        WHERE f.ended AND v.ended_at IS NULL"""),
    Invariant("F5", "an open visit of an agent, a tool or a question has a run", """
        SELECT v.flow_run_id, v.id FROM visits v
        WHERE v.ended_at IS NULL AND v.kind <> 'constant' AND v.session_id IS NULL"""),
    Invariant("F6", "the run of a visit belongs to the flow run of the visit", """
        SELECT v.flow_run_id, v.id FROM visits v JOIN runs r ON r.id = v.session_id
        WHERE r.flow_run_id IS NULL OR r.flow_run_id <> v.flow_run_id"""),
    Invariant("F7", "each run of a flow run is that of a visit, or continues it", """
        SELECT r.id FROM runs r LEFT JOIN flow_visits v ON v.session_id = r.root_run_id
            AND v.flow_run_id = r.flow_run_id
        WHERE r.flow_run_id IS NOT NULL AND v.id IS NULL"""),
)  # fmt: skip


# --- Leases, attempts, commands ---

LEASE_INVARIANTS: tuple[Invariant, ...] = (
    Invariant("L1", "exactly the running runs have a lease", """
        SELECT id FROM native WHERE (status = 'running') <> (lease_owner IS NOT NULL)
            OR (status = 'running') <> (lease_expires_at IS NOT NULL)"""),
    Invariant("L2", "the newest attempt of a run has its epoch, and it is open exactly while the run is running", """
        SELECT r.id FROM native r LEFT JOIN attempts a ON a.run_id = r.id GROUP BY r.id, r.lease_epoch, r.status
        HAVING COALESCE(MAX(a.epoch), 0) <> r.lease_epoch
            OR SUM(CASE WHEN a.epoch IS NOT NULL AND a.ended_at IS NULL THEN 1 ELSE 0 END)
                <> CASE WHEN r.status = 'running' THEN 1 ELSE 0 END"""),
    Invariant("L3", "the epoch of everything that a worker wrote belongs to an attempt", """
        SELECT w.run_id, w.item FROM (
            SELECT run_id, 'message ' || position AS item, epoch FROM messages WHERE epoch IS NOT NULL
            UNION ALL SELECT run_id, 'checkpoint ' || step_number, epoch FROM checkpoints WHERE epoch IS NOT NULL
            UNION ALL SELECT run_id, 'event ' || MIN(seq), epoch FROM events WHERE source = 'worker'
                AND epoch IS NOT NULL GROUP BY run_id, epoch) w
        LEFT JOIN attempts a ON a.run_id = w.run_id AND a.epoch = w.epoch WHERE a.epoch IS NULL"""),
    Invariant("L4", "no running run has a lease that expired more than 30 seconds ago", """
        SELECT r.id FROM native r, clock WHERE r.status = 'running' AND r.lease_expires_at < clock.half_minute_ago"""),
    Invariant("L5", "the epoch of a log is the epoch of its run", """
        SELECT r.id FROM native r JOIN logs l ON l.id = r.id WHERE l.epoch <> r.lease_epoch"""),
    Invariant("L6", "the attempts of a run are numbered 1..n without gaps, except for epochs skipped by a restore", """
        SELECT q.run_id, 'attempt ' || q.epoch FROM (SELECT run_id, epoch, owner,
            LAG(epoch, 1, 0) OVER (PARTITION BY run_id ORDER BY epoch) AS before FROM attempts) q
        JOIN native r ON r.id = q.run_id WHERE q.epoch <> q.before + 1
            AND NOT (q.owner = 'post_restore' AND q.epoch > q.before)"""),
    Invariant("L7", "no worker has claimed an external run or written to it", """
        SELECT w.run_id, w.item FROM (
            SELECT id AS run_id, 'lease' AS item FROM external WHERE lease_owner IS NOT NULL OR lease_epoch <> 0
            UNION ALL SELECT run_id, 'attempt ' || epoch FROM attempts
            UNION ALL SELECT run_id, 'checkpoint ' || step_number FROM checkpoints
            UNION ALL SELECT run_id, 'event ' || seq FROM events WHERE source = 'worker') w
        JOIN external r ON r.id = w.run_id"""),
    # Only a warning, because messages and pauses wait for the end of the model call, which may take longer.
    Invariant("O1", "no command to a running run is pending for more than 30 seconds", """
        SELECT r.id, c.id FROM native r JOIN commands c ON c.run_id = r.id, clock
        WHERE r.status = 'running' AND c.applied_at IS NULL
            AND c.received_at < clock.half_minute_ago""",
        warning_only=True),
    Invariant("O2", "an ended run has no pending commands, and a paused run no pending pause or stop", """
        SELECT r.id, c.id FROM runs r JOIN commands c ON c.run_id = r.id
        WHERE c.applied_at IS NULL AND (r.ended OR (r.status = 'paused' AND c.type IN ('pause', 'stop')))"""),
)  # fmt: skip


# --- Messages ---

MESSAGE_INVARIANTS: tuple[Invariant, ...] = (
    Invariant("M1", "the messages of a run have the positions 1..n, rolled-back ones included: none was deleted", """
        SELECT run_id FROM messages GROUP BY run_id HAVING MIN(position) <> 1 OR MAX(position) <> COUNT(*)"""),
    Invariant("M2", "a step has at most one active model response", """
        SELECT run_id, step_number FROM messages WHERE role = 'assistant' AND rolled_back_at IS NULL
        GROUP BY run_id, step_number HAVING COUNT(*) > 1"""),
    Invariant("M3", "a model call started only after every earlier tool call had its result", """
        SELECT a.run_id, a.id FROM messages a JOIN native r ON r.id = a.run_id
        JOIN open_calls o ON o.run_id = a.run_id AND o.step < a.step_number
        WHERE a.role = 'assistant' AND a.rolled_back_at IS NULL"""),
    Invariant("M4", "an ended tool call of an active message has an active result in the same run and step", """
        SELECT t.run_id, t.id FROM calls t
        JOIN agent_run_messages m ON m.id = t.message_id AND m.rolled_back_at IS NULL
        LEFT JOIN agent_run_messages x ON x.id = t.result_message_id AND x.run_id = t.run_id
            AND x.step_number = t.step_number AND x.role = 'tool_result' AND x.rolled_back_at IS NULL
        WHERE x.id IS NULL AND (t.status IN ('completed', 'error', 'denied') OR t.result_message_id IS NOT NULL)"""),
    Invariant("M5", "an active tool result belongs to exactly one tool call", """
        SELECT m.run_id, m.id FROM messages m
        LEFT JOIN (SELECT result_message_id, COUNT(*) AS n FROM calls WHERE result_message_id IS NOT NULL
            GROUP BY result_message_id) t ON t.result_message_id = m.id
        WHERE m.role = 'tool_result' AND m.rolled_back_at IS NULL AND COALESCE(t.n, 0) <> 1"""),
    Invariant("M6", "a run with rolled-back messages has a run.rolled_back event", """
        SELECT m.run_id, m.id FROM messages m WHERE m.rolled_back_at IS NOT NULL
            AND m.run_id NOT IN (SELECT run_id FROM events WHERE type = 'run.rolled_back')"""),
    Invariant("M7", "a message whose tool may have had an effect is never rolled back", """
        SELECT t.run_id, t.message_id FROM calls t JOIN agent_run_messages m ON m.id = t.message_id
        WHERE m.rolled_back_at IS NOT NULL AND t.starts > 0"""),
    Invariant("M8", "the tool calls in an active response match the rows of its tool calls"),
    Invariant("W6", "the content of a message matches its stored SHA-256 digest"),
)  # fmt: skip


# --- The schema ---


def pending_migrations() -> list[str]:
    """Return the migrations that the database lacks, or why this version cannot use it. Empty: it is current."""
    try:
        return missing_migrations(connection)
    except UnusableSchema as error:
        return [str(error)]


# --- All invariants ---

INVARIANTS: tuple[Invariant, ...] = (
    *LOG_INVARIANTS,
    *MESSAGE_INVARIANTS,
    *TOOL_CALL_INVARIANTS,
    *RUN_INVARIANTS,
    *LEASE_INVARIANTS,
    *FLOW_INVARIANTS,
)
#: Reported instead of violations while migrations are missing.
UPGRADE = Invariant(
    "migrations",
    "the database is being upgraded and was not checked: run `agentops migrate`, then check again",
    warning_only=True,
)
_CONTENT_INVARIANTS = {invariant.name: invariant for invariant in INVARIANTS if not invariant.sql}


@dataclass(frozen=True, slots=True)
class Report:
    """The violations, and the names of the invariants that were not checked within the time limit."""

    violations: list[Violation]
    unchecked: list[str]


def check(run_id: UUID | None = None) -> list[Violation]:
    """Check the invariants of all runs or of one, and return the violations."""
    return check_within(run_id).violations


def check_within(run_id: UUID | None = None, *, within_s: float | None = None) -> Report:
    """Check the invariants within a time limit in seconds. None: unlimited.

    During an upgrade, nothing is checked and the only finding is a warning: rows that a migration has not changed yet
    violate invariants of the new version, and columns may be missing.
    """
    clock = Clock(within_s)
    unchecked = [invariant.name for invariant in INVARIANTS]
    if pending := pending_migrations():
        return Report([_violation(UPGRADE, pending)], unchecked)
    violations = []
    with snapshot():
        try:
            for invariant, ids in _answers(run_id, clock):
                unchecked.remove(invariant.name)
                if ids:
                    violations.append(_violation(invariant, ids))
        except CheckTimedOut:
            pass
    return Report(violations, unchecked)


def _answers(run_id: UUID | None, clock: Clock) -> Iterator[tuple[Invariant, list[str]]]:
    for invariant in INVARIANTS:
        if invariant.sql:
            yield invariant, find_violations(invariant.sql, run_id, clock)
    for name, ids in check_message_contents(run_id, clock).items():
        yield _CONTENT_INVARIANTS[name], ids


def _violation(invariant: Invariant, ids: Sequence[str]) -> Violation:
    listed = tuple(ids[:LISTED])
    return Violation(invariant.name, listed, invariant.says, invariant.warning_only, more=len(ids) > LISTED)
