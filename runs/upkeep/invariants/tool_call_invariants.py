"""The invariants of tool calls: T1 to T8."""

from __future__ import annotations

from runs.upkeep.invariants.invariant import Invariant

TOOL_CALL_INVARIANTS: tuple[Invariant, ...] = (
    Invariant("T1", "a tool call belongs to an assistant message of its run and step", """
        SELECT t.run_id, t.id FROM calls t JOIN agent_run_messages m ON m.id = t.message_id
        WHERE t.run_id <> m.run_id OR t.step_number <> m.step_number OR m.role <> 'assistant'"""),
    Invariant("T2a", "an idempotency key belongs to one tool call", """
        SELECT MIN(CAST(run_id AS VARCHAR(36))), idempotency_key FROM calls WHERE idempotency_key IS NOT NULL
        GROUP BY idempotency_key HAVING COUNT(*) > 1"""),
    Invariant("T2b", "an idempotent tool call has an idempotency key", """
        SELECT run_id, id FROM calls WHERE effect = 'idempotent' AND idempotency_key IS NULL"""),
    Invariant("T3", "an at_most_once tool call was started again only as often as a person chose to", """
        SELECT t.run_id, t.id FROM calls t LEFT JOIN (SELECT run_id, ref_id, COUNT(*) AS n FROM events
            WHERE (type IN ('approval.resolved', 'tool.outcome_resolved') AND decision = 'retry')
                OR type = 'retry.scheduled' GROUP BY run_id, ref_id) e
            ON e.run_id = t.run_id AND e.ref_id = t.id
        WHERE t.effect = 'at_most_once' AND t.starts > 1 + COALESCE(e.n, 0)"""),
    Invariant("T4", "the status, the starts and the times of a tool call are consistent", """
        SELECT run_id, id FROM calls WHERE (status IN ('planned', 'denied') AND starts > 0)
            OR (status IN ('running', 'completed', 'unknown') AND starts = 0)
            OR (status IN ('completed', 'error') AND finished_at IS NULL)
            OR (starts > 0 AND started_at IS NULL)
            OR (status NOT IN ('planned', 'running') AND finished_at < started_at)"""),
    Invariant("T5", "a denied tool call was blocked, rejected, rolled back, or open when its run ended or paused", """
        SELECT t.run_id, t.id FROM calls t JOIN native r ON r.id = t.run_id
        JOIN agent_run_messages m ON m.id = t.message_id AND m.rolled_back_at IS NULL
        LEFT JOIN event_counts e ON e.run_id = t.run_id AND e.ref_id = t.id
            AND e.type IN ('safety.block', 'approval.resolved')
        WHERE t.status = 'denied' AND e.n IS NULL AND r.status NOT IN ('stopped', 'paused', 'failed', 'resumed')
            AND t.run_id NOT IN (SELECT run_id FROM events WHERE type = 'policy.applied')"""),
    Invariant("T7", "a run waits while the outcome of a tool call is unknown and not resolved", """
        SELECT t.run_id, t.id FROM calls t JOIN native r ON r.id = t.run_id
        WHERE t.status = 'unknown' AND t.result_message_id IS NULL AND t.finished_at IS NOT NULL
            AND NOT (r.status = 'waiting' AND r.status_reason = 'unknown_tool')"""),
    Invariant("T8", "a tool call that has ended has an output or an error", """
        SELECT t.run_id, t.id FROM calls t
        WHERE NOT t.has_output
            AND (t.status IN ('completed', 'error', 'denied') OR t.result_message_id IS NOT NULL)"""),
    Invariant("T6", "no tool call is open in a run that ended for good", """
        SELECT r.id, t.id FROM runs r JOIN open_calls o ON o.run_id = r.id JOIN calls t ON t.run_id = r.id
        WHERE r.ended AND (r.source = 'native' OR r.status_reason <> 'abandoned')
            AND t.step_number >= o.step AND (t.status IN ('planned', 'running')
            OR (t.status = 'unknown' AND t.result_message_id IS NULL))"""),
    Invariant("T9", "an approval is pending as long as its run waits for it", """
        SELECT r.id, a.id FROM runs r LEFT JOIN approvals a ON a.run_id = r.id AND a.state = 'pending'
        WHERE (r.source = 'native' OR a.id IS NOT NULL)
            AND (a.id IS NOT NULL) <> (r.status = 'waiting' AND r.status_reason = 'approval')"""),
)  # fmt: skip
