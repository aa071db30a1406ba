"""What must be true of the stored rows, whatever crashed: statements that find the rows for which it is not.

May import Django, the record, runs' models and the pure parts. Reads only; SQL of Postgres 15 and SQLite alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from runs import messages
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall

#: Offending ids that one violation lists; there may be more.
LISTED = 100
BATCH = 500


@dataclass(frozen=True, slots=True)
class Invariant:
    """A statement, and the SQL that finds what contradicts it: rows of a run's id and, within the run, an item."""

    name: str
    says: str
    #: Empty where Python looks (see `_look_into_messages`).
    sql: str = ""
    #: Found, told, but no reason to call the data broken.
    warning_only: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    #: "<run id>" or "<run id>/<item>", where an item is a row's id or an event's seq; at most `LISTED`.
    ids: tuple[str, ...]
    says: str
    warning_only: bool = False
    #: There are more than the listed ids.
    more: bool = False


#: The names that the statements speak of; those of one run only where a run was asked for, and never those of a run
#: that is being removed. `told` counts the events that speak of a row: looked up row by row instead, a long run would
#: cost the square of its length. `found` is materialized because a LIMIT in sight makes Postgres hope for rows that
#: are not there.
_QUESTION = """
WITH clock AS (SELECT {half_minute_ago} AS half_minute_ago),
removing AS (SELECT id FROM timeline_tombstone WHERE finished_at IS NULL),
logs AS NOT MATERIALIZED (SELECT * FROM timeline_log{by_id}),
runs AS NOT MATERIALIZED (SELECT agent_runs.*, status IN ('completed', 'failed', 'stopped', 'resumed') AS ended
    FROM agent_runs{by_id}),
native AS NOT MATERIALIZED (SELECT * FROM runs WHERE source = 'native'),
kept AS NOT MATERIALIZED (SELECT * FROM runs WHERE source <> 'native'),
events AS NOT MATERIALIZED (SELECT log_id AS run_id, seq, event_id, type, ref_id, source, epoch, late
    FROM agent_run_events{by_log}),
messages AS NOT MATERIALIZED (SELECT id, run_id, position, role, step_number, epoch, rolled_back_at
    FROM agent_run_messages{by_run}),
calls AS NOT MATERIALIZED (SELECT id, run_id, message_id, status, effect, idempotency_key, starts, step_number,
    started_at, finished_at, result_message_id FROM agent_run_tool_calls{by_run}),
checkpoints AS NOT MATERIALIZED (SELECT * FROM agent_run_checkpoints{by_run}),
attempts AS NOT MATERIALIZED (SELECT * FROM agent_run_attempts{by_run}),
commands AS NOT MATERIALIZED (SELECT * FROM agent_run_commands{by_run}),
endings AS (SELECT run_id, COUNT(*) AS n, MIN(type) AS type, MIN(seq) AS seq FROM events
    WHERE type IN ('run.completed', 'run.failed', 'run.stopped', 'run.resumed') AND NOT late GROUP BY run_id),
told AS NOT MATERIALIZED (SELECT run_id, ref_id, type, COUNT(*) AS n FROM events
    WHERE ref_id IS NOT NULL GROUP BY run_id, ref_id, type),
open_calls AS (SELECT run_id, MIN(step_number) AS step FROM calls WHERE status IN ('planned', 'running')
    OR (status = 'unknown' AND result_message_id IS NULL) GROUP BY run_id),
found AS MATERIALIZED ({statement})
SELECT * FROM found LIMIT {limit}
"""
_COLUMNS = {"by_id": "id", "by_log": "log_id", "by_run": "run_id"}
_HALF_MINUTE_AGO = {
    "postgresql": "now() - interval '30 seconds'",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-30 seconds')",
}


def _warned_of_foreign(name: str, says: str, sql: str) -> tuple[Invariant, Invariant]:
    """What we do not execute ourselves may be incomplete: there the statement is only a warning."""
    return (
        Invariant(name, says, sql.replace("{runs}", "native")),
        Invariant(f"{name} foreign", says, sql.replace("{runs}", "kept"), warning_only=True),
    )


INVARIANTS: tuple[Invariant, ...] = (
    # --- E: the log ---------------------------------------------------------------------------------------------
    Invariant("E1", "the events of a log are numbered 1..n without a gap", """
        SELECT run_id FROM events GROUP BY run_id
        HAVING MIN(seq) <> 1 OR MAX(seq) <> COUNT(*) OR COUNT(DISTINCT seq) <> COUNT(*)"""),
    Invariant("E2", "the counter of a log is the number of its last event", """
        SELECT l.id FROM logs l LEFT JOIN (SELECT run_id, MAX(seq) AS last FROM events GROUP BY run_id) e
            ON e.run_id = l.id WHERE l.last_seq <> COALESCE(e.last, 0)"""),
    Invariant("E3", "an event_id stands in a log once", """
        SELECT run_id, event_id FROM events WHERE event_id IS NOT NULL
        GROUP BY run_id, event_id HAVING COUNT(*) > 1"""),
    Invariant("E4", "the first event of a run, and no other, is run.created", """
        SELECT r.id, e.seq FROM runs r
        LEFT JOIN events e ON e.run_id = r.id AND (e.seq = 1 OR e.type = 'run.created')
        WHERE e.seq IS NULL OR e.seq <> 1 OR e.type <> 'run.created'"""),
    Invariant("E5", "a run that ended has exactly one event that says so, and that says how; no other run has one", """
        SELECT r.id FROM runs r LEFT JOIN endings e ON e.run_id = r.id
        WHERE COALESCE(e.n, 0) <> CASE WHEN r.ended THEN 1 ELSE 0 END OR e.type <> 'run.' || r.status"""),
    Invariant("E6", "after the event that ends a run there are only late ones", """
        SELECT e.run_id, e.seq FROM events e JOIN endings t ON t.run_id = e.run_id
        WHERE e.seq > t.seq AND NOT e.late"""),
    Invariant("E7", "the epochs of workers never go back: one that was taken over wrote nothing more", """
        SELECT run_id, seq FROM (SELECT run_id, seq, epoch,
            LAG(epoch) OVER (PARTITION BY run_id ORDER BY seq) AS before FROM events WHERE source = 'worker') q
        WHERE epoch < before"""),
    Invariant("E8a", "each message has exactly one message.added event", """
        SELECT m.run_id, m.id FROM messages m LEFT JOIN told e
            ON e.run_id = m.run_id AND e.ref_id = m.id AND e.type = 'message.added' WHERE COALESCE(e.n, 0) <> 1"""),
    Invariant("E8b", "each message.added event speaks of a message of its run", """
        SELECT e.run_id, e.seq FROM events e LEFT JOIN messages m ON m.id = e.ref_id AND m.run_id = e.run_id
        WHERE e.type = 'message.added' AND m.id IS NULL"""),
    *_warned_of_foreign("E9a", "a tool call has one tool.end event once it has its result, and none before", """
        SELECT t.run_id, t.id FROM calls t JOIN {runs} r ON r.id = t.run_id
        LEFT JOIN told e ON e.run_id = t.run_id AND e.ref_id = t.id AND e.type = 'tool.end'
        WHERE COALESCE(e.n, 0) <> CASE WHEN t.status IN ('completed', 'error', 'denied')
            OR (t.status = 'unknown' AND t.result_message_id IS NOT NULL) THEN 1 ELSE 0 END"""),
    *_warned_of_foreign("E9b", "a tool call has as many tool.start events as it was started", """
        SELECT t.run_id, t.id FROM calls t JOIN {runs} r ON r.id = t.run_id
        LEFT JOIN told e ON e.run_id = t.run_id AND e.ref_id = t.id AND e.type = 'tool.start'
        WHERE COALESCE(e.n, 0) <> t.starts"""),
    Invariant("E10", "no model turn is left open in a run that ended or paused", """
        SELECT r.id FROM native r JOIN (SELECT run_id, SUM(CASE type WHEN 'llm.turn.start' THEN 1 ELSE -1 END) AS n
            FROM events WHERE type IN ('llm.turn.start', 'llm.turn.end', 'llm.turn.abandoned') AND NOT late
            GROUP BY run_id) e ON e.run_id = r.id
        WHERE (r.ended OR r.status = 'paused') AND e.n <> 0"""),
    # --- M: the conversation ------------------------------------------------------------------------------------
    Invariant("M1", "the messages of a run stand at 1..n, rolled-back ones included: nothing was deleted", """
        SELECT run_id FROM messages GROUP BY run_id HAVING MIN(position) <> 1 OR MAX(position) <> COUNT(*)"""),
    Invariant("M2", "a step has one active answer of the model", """
        SELECT run_id, step_number FROM messages WHERE role = 'assistant' AND rolled_back_at IS NULL
        GROUP BY run_id, step_number HAVING COUNT(*) > 1"""),
    Invariant("M3", "the model was asked again only when every earlier tool call had its result", """
        SELECT a.run_id, a.id FROM messages a JOIN native r ON r.id = a.run_id
        JOIN open_calls o ON o.run_id = a.run_id AND o.step < a.step_number
        WHERE a.role = 'assistant' AND a.rolled_back_at IS NULL"""),
    Invariant("M4", "a tool call of an active message that came to an end has an active result of its run and step", """
        SELECT t.run_id, t.id FROM calls t
        JOIN agent_run_messages m ON m.id = t.message_id AND m.rolled_back_at IS NULL
        LEFT JOIN agent_run_messages x ON x.id = t.result_message_id AND x.run_id = t.run_id
            AND x.step_number = t.step_number AND x.role = 'tool_result' AND x.rolled_back_at IS NULL
        WHERE x.id IS NULL AND (t.status IN ('completed', 'error', 'denied') OR t.result_message_id IS NOT NULL)"""),
    Invariant("M5", "an active tool result answers exactly one tool call", """
        SELECT m.run_id, m.id FROM messages m
        LEFT JOIN (SELECT result_message_id, COUNT(*) AS n FROM calls WHERE result_message_id IS NOT NULL
            GROUP BY result_message_id) t ON t.result_message_id = m.id
        WHERE m.role = 'tool_result' AND m.rolled_back_at IS NULL AND COALESCE(t.n, 0) <> 1"""),
    Invariant("M6", "a rolled-back message is explained by a run.rolled_back event", """
        SELECT m.run_id, m.id FROM messages m WHERE m.rolled_back_at IS NOT NULL
            AND m.run_id NOT IN (SELECT run_id FROM events WHERE type = 'run.rolled_back')"""),
    Invariant("M7", "a message whose tool may have had an effect is never rolled back", """
        SELECT t.run_id, t.message_id FROM calls t JOIN agent_run_messages m ON m.id = t.message_id
        WHERE m.rolled_back_at IS NOT NULL AND t.starts > 0"""),
    Invariant("M8", "the tool calls that an active answer asks for and the rows of its tool calls are the same"),
    # --- T: tool calls ------------------------------------------------------------------------------------------
    Invariant("T1", "a tool call belongs to an assistant message of its run and step", """
        SELECT t.run_id, t.id FROM calls t JOIN agent_run_messages m ON m.id = t.message_id
        WHERE t.run_id <> m.run_id OR t.step_number <> m.step_number OR m.role <> 'assistant'"""),
    Invariant("T2a", "an idempotency key belongs to one tool call", """
        SELECT MIN(CAST(run_id AS VARCHAR(36))), idempotency_key FROM calls WHERE idempotency_key IS NOT NULL
        GROUP BY idempotency_key HAVING COUNT(*) > 1"""),
    Invariant("T2b", "a tool call that may be repeated under a key has one", """
        SELECT run_id, id FROM calls WHERE effect = 'idempotent' AND idempotency_key IS NULL"""),
    Invariant("T3", "a tool call that may take effect once was started again only as often as someone chose", """
        SELECT t.run_id, t.id FROM calls t LEFT JOIN told e
            ON e.run_id = t.run_id AND e.ref_id = t.id AND e.type = 'approval.resolved'
        WHERE t.effect = 'at_most_once' AND t.starts > 1 + COALESCE(e.n, 0)"""),
    Invariant("T4", "the status of a tool call, its starts and its times agree", """
        SELECT run_id, id FROM calls WHERE (status IN ('planned', 'denied') AND starts > 0)
            OR (status IN ('running', 'completed', 'unknown') AND starts = 0)
            OR (status IN ('completed', 'error') AND finished_at IS NULL)
            OR (starts > 0 AND started_at IS NULL)
            OR (status NOT IN ('planned', 'running') AND finished_at < started_at)"""),
    Invariant("T5", "a denied tool call was blocked, refused, taken back, or open when its run ended or paused", """
        SELECT t.run_id, t.id FROM calls t JOIN runs r ON r.id = t.run_id
        JOIN agent_run_messages m ON m.id = t.message_id AND m.rolled_back_at IS NULL
        LEFT JOIN told e ON e.run_id = t.run_id AND e.ref_id = t.id AND e.type IN ('safety.block', 'approval.resolved')
        WHERE t.status = 'denied' AND e.n IS NULL AND r.status NOT IN ('stopped', 'paused', 'failed', 'resumed')"""),
    Invariant("T7", "a call of unknown outcome waits for somebody's word, and so does its run; or it runs again", """
        SELECT t.run_id, t.id FROM calls t JOIN native r ON r.id = t.run_id
        WHERE t.status = 'unknown' AND t.result_message_id IS NULL AND t.finished_at IS NOT NULL
            AND NOT (r.status = 'waiting' AND r.status_reason = 'unknown_tool')"""),
    *_warned_of_foreign("T6", "no tool call is open in a run that ended", """
        SELECT r.id, t.id FROM {runs} r JOIN open_calls o ON o.run_id = r.id JOIN calls t ON t.run_id = r.id
        WHERE r.ended AND t.step_number >= o.step AND (t.status IN ('planned', 'running')
            OR (t.status = 'unknown' AND t.result_message_id IS NULL))"""),
    # --- C: checkpoints -----------------------------------------------------------------------------------------
    Invariant("C1", "checkpoints move forward: a later step's stands at a later message", """
        SELECT q.run_id, q.id FROM (SELECT id, run_id, last_message_position AS position, LAG(last_message_position)
            OVER (PARTITION BY run_id ORDER BY step_number) AS before FROM checkpoints) q
        JOIN native r ON r.id = q.run_id WHERE q.position <= q.before"""),
    Invariant("C2a", "a checkpoint stands at an active message", """
        SELECT c.run_id, c.id FROM checkpoints c JOIN native r ON r.id = c.run_id
        LEFT JOIN agent_run_messages m ON m.run_id = c.run_id AND m.position = c.last_message_position
            AND m.rolled_back_at IS NULL
        WHERE m.id IS NULL"""),
    Invariant("C2b", "no tool call is open at or before a checkpoint", """
        SELECT c.run_id, c.id FROM checkpoints c JOIN native r ON r.id = c.run_id
        JOIN open_calls o ON o.run_id = c.run_id AND o.step <= c.step_number"""),
    Invariant("C3", "a completed run has the checkpoint of its last step", """
        SELECT r.id FROM native r LEFT JOIN checkpoints c ON c.run_id = r.id AND c.step_number = r.step_count
        WHERE r.status = 'completed' AND r.step_count > r.step_base AND c.id IS NULL"""),
    # --- R: runs and their kin ----------------------------------------------------------------------------------
    Invariant("R1a", "a run is resumed by at most one", """
        SELECT resumed_from_id FROM runs WHERE resumed_from_id IS NOT NULL
        GROUP BY resumed_from_id HAVING COUNT(*) > 1"""),
    Invariant("R1b", "what a run resumes has the status resumed and belongs to its project", """
        SELECT c.id FROM runs c JOIN agent_runs p ON p.id = c.resumed_from_id
        WHERE p.status <> 'resumed' OR p.project_id <> c.project_id"""),
    Invariant("R1c", "a resumed run went on as another", """
        SELECT p.id FROM runs p LEFT JOIN agent_runs c ON c.resumed_from_id = p.id
        WHERE p.status = 'resumed' AND c.id IS NULL"""),
    Invariant("R2a", "steps are counted on: a run begins where the one that it resumes ended", """
        SELECT r.id FROM native r JOIN agent_runs p ON p.id = r.resumed_from_id
        WHERE r.step_base <> p.step_count"""),
    Invariant("R2b", "a run keeps to its own step budget and to the cap of its lineage", """
        SELECT r.id FROM native r WHERE r.step_count > %(cap)s OR r.step_count < r.step_base
            OR r.step_count - r.step_base > r.max_steps
            OR (r.resumed_from_id IS NULL AND r.forked_from_id IS NULL AND r.step_base <> 0)"""),
    Invariant("R3", "a run has as many steps as it has active answers of the model", """
        SELECT r.id FROM runs r LEFT JOIN (SELECT run_id, COUNT(*) AS n FROM messages
            WHERE role = 'assistant' AND rolled_back_at IS NULL GROUP BY run_id) m ON m.run_id = r.id
        WHERE COALESCE(m.n, 0) <> r.step_count - r.step_base"""),
    Invariant("R4a", "exactly the runs that ended have the time of their end", """
        SELECT id FROM runs WHERE ended <> (completed_at IS NOT NULL)"""),
    Invariant("R4b", "a run and its parent belong to one project", """
        SELECT c.id FROM runs c JOIN agent_runs p ON p.id = c.parent_run_id WHERE p.project_id <> c.project_id"""),
    Invariant("R4c", "no run comes from itself", """
        SELECT start FROM (WITH RECURSIVE
            kin(id, origin) AS (SELECT id, parent_run_id FROM agent_runs WHERE parent_run_id IS NOT NULL
                UNION SELECT id, resumed_from_id FROM agent_runs WHERE resumed_from_id IS NOT NULL
                UNION SELECT id, forked_from_id FROM agent_runs WHERE forked_from_id IS NOT NULL),
            up(start, id) AS (SELECT k.id, k.origin FROM kin k JOIN runs r ON r.id = k.id
                UNION SELECT u.start, k.origin FROM up u JOIN kin k ON k.id = u.id)
            SELECT start, id FROM up) q WHERE start = id"""),
    Invariant("R5", "the root of a lineage is the root of the run that it resumes, else the run itself", """
        SELECT c.id FROM runs c LEFT JOIN agent_runs p ON p.id = c.resumed_from_id
        WHERE c.root_run_id <> COALESCE(p.root_run_id, c.id)"""),
    Invariant("R6", "a fork begins at a checkpoint of a run of its project, and counts its steps on from there", """
        SELECT c.id FROM native c
        LEFT JOIN agent_runs p ON p.id = c.forked_from_id AND p.project_id = c.project_id
        LEFT JOIN agent_run_checkpoints k ON k.run_id = p.id AND k.step_number = c.forked_at_step
        WHERE (c.forked_from_id IS NOT NULL AND (k.id IS NULL OR c.step_base <> c.forked_at_step))
            OR (c.forked_from_id IS NULL AND c.forked_at_step IS NOT NULL)"""),
    # --- L: leases ----------------------------------------------------------------------------------------------
    Invariant("L1", "exactly the running runs have a lease", """
        SELECT id FROM native WHERE (status = 'running') <> (lease_owner IS NOT NULL)
            OR (status = 'running') <> (lease_expires_at IS NOT NULL)"""),
    Invariant("L2", "a run's newest attempt is its epoch, and one is open exactly while it is running", """
        SELECT r.id FROM native r LEFT JOIN attempts a ON a.run_id = r.id GROUP BY r.id, r.lease_epoch, r.status
        HAVING COALESCE(MAX(a.epoch), 0) <> r.lease_epoch
            OR SUM(CASE WHEN a.epoch IS NOT NULL AND a.ended_at IS NULL THEN 1 ELSE 0 END)
                <> CASE WHEN r.status = 'running' THEN 1 ELSE 0 END"""),
    Invariant("L3", "what a worker wrote is of an epoch that a worker had", """
        SELECT w.run_id, w.item FROM (
            SELECT run_id, 'message ' || position AS item, epoch FROM messages WHERE epoch IS NOT NULL
            UNION ALL SELECT run_id, 'checkpoint ' || step_number, epoch FROM checkpoints WHERE epoch IS NOT NULL
            UNION ALL SELECT run_id, 'event ' || MIN(seq), epoch FROM events WHERE source = 'worker'
                AND epoch IS NOT NULL GROUP BY run_id, epoch) w
        LEFT JOIN attempts a ON a.run_id = w.run_id AND a.epoch = w.epoch WHERE a.epoch IS NULL"""),
    Invariant("L4", "no running run is without a living worker for more than 30 seconds", """
        SELECT r.id FROM native r, clock WHERE r.status = 'running' AND r.lease_expires_at < clock.half_minute_ago"""),
    Invariant("L5", "the fence of a log is the epoch of its run", """
        SELECT r.id FROM native r JOIN logs l ON l.id = r.id WHERE l.epoch <> r.lease_epoch"""),
    Invariant("L6", "a run's attempts are numbered 1..n without a gap, but for those that a restore skipped", """
        SELECT q.run_id, 'attempt ' || q.epoch FROM (SELECT run_id, epoch, owner,
            LAG(epoch, 1, 0) OVER (PARTITION BY run_id ORDER BY epoch) AS before FROM attempts) q
        JOIN native r ON r.id = q.run_id WHERE q.epoch <> q.before + 1
            AND NOT (q.owner = 'post_restore' AND q.epoch > q.before)"""),
    # --- O: wishes ----------------------------------------------------------------------------------------------
    # A warning: a message or a pause waits for the end of the model call, which may take longer than that.
    Invariant("O1", "no command to a running run waits unread for more than 30 seconds", """
        SELECT r.id, c.id FROM native r JOIN commands c ON c.run_id = r.id, clock
        WHERE r.status = 'running' AND c.applied_at IS NULL
            AND c.received_at < clock.half_minute_ago""",
        warning_only=True),
    # --- X: what was removed ------------------------------------------------------------------------------------
    Invariant("X1", "of a run that was removed nothing is left but its tombstone", """
        SELECT l.id FROM logs l JOIN timeline_tombstone t ON t.id = l.id"""),
    Invariant("X2", "a run that is hidden has a tombstone that says why", """
        SELECT r.id FROM runs r WHERE r.removed_at IS NOT NULL"""),
    # --- W: the bytes -------------------------------------------------------------------------------------------
    Invariant("W6", "the content of a message has the SHA-256 that was stored with it"),
)  # fmt: skip
_PYTHON = [invariant for invariant in INVARIANTS if not invariant.sql]


def check(run_id: UUID | None = None) -> list[Violation]:
    """What contradicts the invariants, of all runs or of one; empty where everything is in order."""
    with snapshot():
        found = [_violation(invariant, _ask(invariant.sql, run_id)) for invariant in INVARIANTS if invariant.sql]
        found += _look_into_messages(run_id)
    return [violation for violation in found if violation is not None]


@contextmanager
def snapshot() -> Iterator[None]:
    """All reads of the block see one state. Nothing is written, and nobody who writes waits.

    Inside a transaction of the caller, that one's isolation stays.
    """
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic():
            _execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    else:
        # Not atomic(): its BEGIN IMMEDIATE would keep everybody from writing.
        _execute("BEGIN")
        try:
            yield
        finally:
            _execute("ROLLBACK")


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _ask(sql: str, run_id: UUID | None) -> list[str]:
    """The ids that a statement finds, one more than are listed where there are more."""
    params: dict[str, Any] = {"cap": settings.AGENTOPS_MAX_TOTAL_STEPS}
    seen = " WHERE {column} NOT IN (SELECT id FROM removing)"
    if run_id is not None:
        params["run"] = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
        seen += " AND {column} = %(run)s"
    columns = {name: seen.format(column=column) for name, column in _COLUMNS.items()}
    question = _QUESTION.format(
        statement=sql, limit=LISTED + 1, half_minute_ago=_HALF_MINUTE_AGO[connection.vendor], **columns
    )
    with connection.cursor() as cursor:
        cursor.execute(question, params)
        return ["/".join(_word(value) for value in row) for row in cursor.fetchall()]


def _word(value: object) -> str:
    """A column as text; a UUID looks alike on both databases."""
    if isinstance(value, str) and len(value) == 32:
        try:
            return str(UUID(value))
        except ValueError:
            return value
    return str(value)


def _violation(invariant: Invariant, ids: Iterable[str]) -> Violation | None:
    listed = list(islice(ids, LISTED + 1))
    if not listed:
        return None
    shown = tuple(listed[:LISTED])
    return Violation(invariant.name, shown, invariant.says, invariant.warning_only, more=len(listed) > LISTED)


def _look_into_messages(run_id: UUID | None) -> list[Violation | None]:
    """The invariants that no SQL can judge: every message is read once, as a stream."""
    found: dict[str, list[str]] = {invariant.name: [] for invariant in _PYTHON}
    rows = AgentRunMessage.objects.filter(run__removed_at=None).order_by("run", "position")
    if run_id is not None:
        rows = rows.filter(run=run_id)
    stream = rows.only("run", "role", "content", "sha256", "rolled_back_at").iterator(chunk_size=BATCH)
    while batch := list(islice(stream, BATCH)):
        found["W6"] += [_id(row) for row in batch if bytes(row.sha256) != messages.sha256(row.content)]
        answers = [row for row in batch if row.role == AgentRunMessage.Role.ASSISTANT and row.rolled_back_at is None]
        stored = _stored_calls(answers)
        found["M8"] += [_id(row) for row in answers if _asked(row) != stored.get(row.pk, Counter())]
    return [_violation(invariant, found[invariant.name]) for invariant in _PYTHON]


def _id(row: AgentRunMessage) -> str:
    return f"{row.run_id}/{row.pk}"


def _asked(row: AgentRunMessage) -> Counter[tuple[str, str]]:
    """Id and tool of each call that an answer asks for, cut as their columns are."""
    parts = [part for part in row.content.get("parts", ()) if part.get("part_kind") == "tool-call"]
    return Counter((part["tool_call_id"][:256], part["tool_name"][:256]) for part in parts)


def _stored_calls(answers: list[AgentRunMessage]) -> dict[UUID, Counter[tuple[str, str]]]:
    stored: dict[UUID, Counter[tuple[str, str]]] = {}
    calls = AgentRunToolCall.objects.filter(message__in=answers).values_list("message_id", "call_id", "tool_name")
    for message_id, call_id, tool_name in calls:
        stored.setdefault(message_id, Counter())[call_id, tool_name] += 1
    return stored
