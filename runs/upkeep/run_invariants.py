"""The invariants of checkpoints (C1 to C3), runs and their lineage (R1 to R9) and usage (U1 to U4).

Their SQL is valid on PostgreSQL 15 and SQLite, and selects from the subqueries that invariant_sql.py defines.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from runs.statuses import POLICY_WAITS, PauseReason, WaitReason
from runs.upkeep.invariant_sql import Invariant

#: Waits that end automatically.
TIMED = (WaitReason.COOLDOWN, WaitReason.RETRY_ALONE, *sorted(POLICY_WAITS))


def _quoted(values: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{value}'" for value in values)


RUN_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "C1",
        "checkpoints move forward: the checkpoint of a later step is at a later message",
        """SELECT q.run_id, q.id FROM (SELECT id, run_id, last_message_position AS position, LAG(last_message_position)
            OVER (PARTITION BY run_id ORDER BY step_number) AS before FROM checkpoints) q
        JOIN native r ON r.id = q.run_id WHERE q.position <= q.before""",
    ),
    Invariant(
        "C2a",
        "a checkpoint is at an active message",
        """SELECT c.run_id, c.id FROM checkpoints c JOIN native r ON r.id = c.run_id
        LEFT JOIN agent_run_messages m ON m.run_id = c.run_id AND m.position = c.last_message_position
            AND m.rolled_back_at IS NULL
        WHERE m.id IS NULL""",
    ),
    Invariant(
        "C2b",
        "no tool call is open at or before a checkpoint",
        """SELECT c.run_id, c.id FROM checkpoints c JOIN native r ON r.id = c.run_id
        JOIN open_calls o ON o.run_id = c.run_id AND o.step <= c.step_number""",
    ),
    Invariant(
        "C3",
        "a completed run has the checkpoint of its last step",
        """SELECT r.id FROM native r LEFT JOIN checkpoints c ON c.run_id = r.id AND c.step_number = r.step_count
        WHERE r.status = 'completed' AND r.step_count > r.step_base AND c.id IS NULL""",
    ),
    Invariant(
        "R1a",
        "a run is resumed by at most one run",
        """SELECT resumed_from_id FROM runs WHERE resumed_from_id IS NOT NULL
        GROUP BY resumed_from_id HAVING COUNT(*) > 1""",
    ),
    Invariant(
        "R1b",
        "the run that another run resumes has the status resumed and belongs to the same project",
        """SELECT c.id FROM runs c JOIN agent_runs p ON p.id = c.resumed_from_id
        WHERE p.status <> 'resumed' OR p.project_id <> c.project_id""",
    ),
    Invariant(
        "R1c",
        "a resumed run is continued by another run",
        """SELECT p.id FROM runs p LEFT JOIN agent_runs c ON c.resumed_from_id = p.id
        WHERE p.status = 'resumed' AND c.id IS NULL""",
    ),
    Invariant(
        "R2a",
        "the step count of a run starts at the step count of the run that it resumes",
        """SELECT r.id FROM native r JOIN agent_runs p ON p.id = r.resumed_from_id
        WHERE r.step_base <> p.step_count""",
    ),
    Invariant(
        "R2b",
        "a run stays within its own step limit and the limit of its lineage",
        """SELECT r.id FROM native r WHERE r.step_count > %(cap)s OR r.step_count < r.step_base
            OR r.step_count - r.step_base > r.max_steps
            OR (r.resumed_from_id IS NULL AND r.forked_from_id IS NULL AND r.step_base <> 0)""",
    ),
    Invariant(
        "R3",
        "a run has as many steps as active model responses",
        """SELECT r.id FROM runs r LEFT JOIN (SELECT run_id, COUNT(*) AS n FROM messages
            WHERE role = 'assistant' AND rolled_back_at IS NULL GROUP BY run_id) m ON m.run_id = r.id
        WHERE COALESCE(m.n, 0) <> r.step_count - r.step_base""",
    ),
    Invariant(
        "R4a",
        "exactly the runs that ended have a completion time",
        """SELECT id FROM runs WHERE ended <> (completed_at IS NOT NULL)""",
    ),
    Invariant(
        "R4b",
        "a run and its parent belong to one project",
        """SELECT c.id FROM runs c JOIN agent_runs p ON p.id = c.parent_run_id WHERE p.project_id <> c.project_id""",
    ),
    Invariant(
        "R4c",
        "no run is its own ancestor",
        """SELECT start FROM (WITH RECURSIVE
            kin(id, origin) AS (SELECT id, parent_run_id FROM agent_runs WHERE parent_run_id IS NOT NULL
                UNION SELECT id, resumed_from_id FROM agent_runs WHERE resumed_from_id IS NOT NULL
                UNION SELECT id, forked_from_id FROM agent_runs WHERE forked_from_id IS NOT NULL),
            up(start, id) AS (SELECT k.id, k.origin FROM kin k JOIN runs r ON r.id = k.id
                UNION SELECT u.start, k.origin FROM up u JOIN kin k ON k.id = u.id)
            SELECT start, id FROM up) q WHERE start = id""",
    ),
    Invariant(
        "R4d",
        "a child run that an event announces belongs to a run of the lineage that started it",
        """SELECT e.run_id, e.ref_id FROM events e JOIN native r ON r.id = e.run_id
        LEFT JOIN agent_runs c ON c.id = e.ref_id LEFT JOIN agent_runs p ON p.id = c.parent_run_id
        WHERE e.type = 'child_run.started' AND (p.id IS NULL OR p.root_run_id <> r.root_run_id)""",
    ),
    Invariant(
        "R4e",
        "the start of a child run is announced once, by its parent",
        """SELECT c.id FROM native c JOIN agent_runs p ON p.id = c.parent_run_id AND p.source = 'native'
        WHERE c.resumed_from_id IS NULL AND (SELECT COUNT(*) FROM agent_run_events e
            WHERE e.log_id = p.id AND e.type = 'child_run.started' AND e.ref_id = c.id) <> 1""",
    ),
    Invariant(
        "R4f",
        "a run that waits for child runs has a running call",
        """SELECT r.id FROM native r WHERE r.status = 'waiting' AND r.status_reason = 'children'
            AND NOT EXISTS (SELECT 1 FROM calls t WHERE t.run_id = r.id AND t.status = 'running')""",
    ),
    Invariant(
        "R5",
        "the root of a run is the root of the run that it resumes, or else the run itself",
        """SELECT c.id FROM runs c LEFT JOIN agent_runs p ON p.id = c.resumed_from_id
        WHERE c.root_run_id <> COALESCE(p.root_run_id, c.id)""",
    ),
    Invariant(
        "R6",
        "a fork starts at a checkpoint of a run of its project, and continues its step count",
        """SELECT c.id FROM native c
        LEFT JOIN agent_runs p ON p.id = c.forked_from_id AND p.project_id = c.project_id
        LEFT JOIN agent_run_checkpoints k ON k.run_id = p.id AND k.step_number = c.forked_at_step
        WHERE (c.forked_from_id IS NOT NULL AND (k.id IS NULL OR c.step_base <> c.forked_at_step))
            OR (c.forked_from_id IS NULL AND c.forked_at_step IS NOT NULL)""",
    ),
    Invariant(
        "R6 foreign",
        "a recorded fork is of a run of its project, and has all its messages itself",
        """SELECT c.id FROM external c LEFT JOIN agent_runs p ON p.id = c.forked_from_id AND p.project_id = c.project_id
        WHERE c.forked_at_step IS NOT NULL OR (c.forked_from_id IS NOT NULL AND p.id IS NULL)""",
    ),
    Invariant(
        "R7",
        "a run does not both resume a run and fork one",
        """SELECT id FROM runs WHERE resumed_from_id IS NOT NULL AND forked_from_id IS NOT NULL""",
    ),
    Invariant(
        "R8",
        "a waiting or paused run has a known reason, and a timed wait has a time",
        f"""SELECT id FROM native WHERE (status = 'waiting' AND status_reason NOT IN ({_quoted(WaitReason)}))
            OR (status = 'paused' AND status_reason NOT IN ({_quoted(PauseReason)}))
            OR (status = 'waiting' AND status_reason IN ({_quoted(TIMED)}) AND not_before IS NULL)""",  # noqa: S608 - values of enums
    ),
    Invariant(
        "R9",
        "a run that paused because its response was cut off or refused ends with such a response",
        """SELECT r.id FROM native r LEFT JOIN messages m ON m.run_id = r.id AND m.step_number = r.step_count
            AND m.role = 'assistant' AND m.rolled_back_at IS NULL
        WHERE r.status = 'paused' AND r.status_reason IN ('answer_cut', 'answer_refused')
            AND COALESCE(m.finish_reason, '') <> CASE r.status_reason WHEN 'answer_cut' THEN 'length'
                ELSE 'content_filter' END""",
    ),
    Invariant(
        "U1",
        "the usage of each model response, including rolled-back ones, is counted once",
        # A step of a remote run that no model requested is stored as a response with a single call.
        """SELECT q.run_id, 'step ' || q.step_number FROM (
            SELECT run_id, step_number, 1 AS n FROM messages WHERE role = 'assistant'
            UNION ALL SELECT run_id, step_number, -1 FROM code_steps
            UNION ALL SELECT run_id, step_number, -1 FROM usages WHERE outcome IN ('answered', 'rolled_back')) q
        JOIN native r ON r.id = q.run_id GROUP BY q.run_id, q.step_number HAVING SUM(q.n) <> 0""",
    ),
    Invariant(
        "U1 foreign",
        "the usage of a turn of an external run belongs to a model response",
        """SELECT u.run_id, 'step ' || u.step_number FROM usages u JOIN external r ON r.id = u.run_id
        LEFT JOIN messages m ON m.run_id = u.run_id AND m.step_number = u.step_number AND m.role = 'assistant'
        WHERE m.id IS NULL""",
    ),
    Invariant(
        "U2",
        "the usage of a run is the sum of the usage of its turns",
        """SELECT r.id FROM native r LEFT JOIN (SELECT run_id, SUM(input_tokens) AS sent, SUM(output_tokens) AS said,
            SUM(cache_read_tokens) AS read, SUM(cache_write_tokens) AS kept, SUM(reasoning_tokens) AS thought,
            SUM(cache_write_1h_tokens) AS kept_1h, COUNT(*) - COUNT(cost_usd) AS unpriced,
            SUM(cost_usd) AS cost FROM usages GROUP BY run_id) u ON u.run_id = r.id
        WHERE r.input_tokens <> COALESCE(u.sent, 0) OR r.output_tokens <> COALESCE(u.said, 0)
            OR r.cache_read_tokens <> COALESCE(u.read, 0) OR r.cache_write_tokens <> COALESCE(u.kept, 0)
            OR r.reasoning_tokens <> COALESCE(u.thought, 0) OR r.cache_write_1h_tokens <> COALESCE(u.kept_1h, 0)
            OR r.unpriced_calls <> COALESCE(u.unpriced, 0) OR (r.cost_usd IS NULL) <> (u.cost IS NULL)
            OR ABS(r.cost_usd - u.cost) > 0.000001""",
    ),
    # A runner may report only the tokens of the whole run, and a cost that replaces the costs of the turns.
    Invariant(
        "U2 foreign",
        "the usage of an external run is the sum of its turns, or what its runner reported",
        """SELECT r.id FROM external r LEFT JOIN (SELECT run_id, SUM(input_tokens) AS sent, SUM(output_tokens) AS said,
            SUM(cache_read_tokens) AS read, SUM(cache_write_tokens) AS kept, SUM(reasoning_tokens) AS thought,
            SUM(cache_write_1h_tokens) AS kept_1h, COUNT(*) - COUNT(cost_usd) AS unpriced,
            SUM(cost_usd) AS cost FROM usages GROUP BY run_id) u ON u.run_id = r.id
        WHERE (u.sent + u.said + u.read + u.kept + u.thought > 0 AND (r.input_tokens <> u.sent
                OR r.output_tokens <> u.said OR r.cache_read_tokens <> u.read OR r.cache_write_tokens <> u.kept
                OR r.reasoning_tokens <> u.thought OR r.cache_write_1h_tokens <> u.kept_1h))
            OR (NOT r.ended AND COALESCE(u.sent + u.said + u.read + u.kept + u.thought, 0) = 0 AND r.input_tokens
                + r.output_tokens + r.cache_read_tokens + r.cache_write_tokens + r.reasoning_tokens > 0)
            OR (r.cost_usd IS NULL AND u.cost IS NOT NULL)
            OR (r.cost_source <> 'reported' AND ((r.cost_usd IS NOT NULL AND u.cost IS NULL)
                OR ABS(r.cost_usd - u.cost) > 0.000001 OR r.unpriced_calls <> COALESCE(u.unpriced, 0)))""",
    ),
    Invariant(
        "U4",
        "a model call that several runs report is counted in one of them",
        """SELECT u.run_id, 'step ' || u.step_number FROM usages u JOIN agent_run_turn_usages o ON o.call = u.call
        WHERE o.run_id <> u.run_id""",
    ),
    # A larger difference than rounding means a wrong or missing price, an unread bucket, or calls missing from the
    # record.
    Invariant(
        "U3",
        "the cost that a runner reported for a run is, within 1 %, the sum of what its calls cost",
        """SELECT r.id, 'reported ' || r.cost_usd || ', counted ' || u.cost FROM external r
        JOIN (SELECT run_id, SUM(cost_usd) AS cost, COUNT(*) - COUNT(cost_usd) AS unpriced FROM usages
            GROUP BY run_id) u ON u.run_id = r.id
        WHERE r.cost_source = 'reported' AND u.unpriced = 0
            AND ABS(r.cost_usd - u.cost) > 0.01 * r.cost_usd + 0.000001""",
        warning_only=True,
    ),
)
