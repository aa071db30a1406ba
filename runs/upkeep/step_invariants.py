"""The invariants of leases, attempts (L1 to L7), commands (O1, O2), messages (M1 to M8, W6) and tool calls (T1 to T10).

M8 and W6 have no SQL: invariants.py checks them. The SQL of the others is valid on PostgreSQL 15 and SQLite, and
selects from the subqueries that invariant_sql.py defines.
"""

from __future__ import annotations

from runs.upkeep.invariant_sql import Invariant

LEASE_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "L1",
        "exactly the running runs have a lease",
        """SELECT id FROM native WHERE (status = 'running') <> (lease_owner IS NOT NULL)
            OR (status = 'running') <> (lease_expires_at IS NOT NULL)""",
    ),
    Invariant(
        "L2",
        "the newest attempt of a run has its epoch, and it is open exactly while the run is running",
        """SELECT r.id FROM native r LEFT JOIN attempts a ON a.run_id = r.id GROUP BY r.id, r.lease_epoch, r.status
        HAVING COALESCE(MAX(a.epoch), 0) <> r.lease_epoch
            OR SUM(CASE WHEN a.epoch IS NOT NULL AND a.ended_at IS NULL THEN 1 ELSE 0 END)
                <> CASE WHEN r.status = 'running' THEN 1 ELSE 0 END""",
    ),
    Invariant(
        "L3",
        "the epoch of everything that a worker wrote belongs to an attempt",
        """SELECT w.run_id, w.item FROM (
            SELECT run_id, 'message ' || position AS item, epoch FROM messages WHERE epoch IS NOT NULL
            UNION ALL SELECT run_id, 'checkpoint ' || step_number, epoch FROM checkpoints WHERE epoch IS NOT NULL
            UNION ALL SELECT run_id, 'step ' || position, epoch FROM journal
            UNION ALL SELECT run_id, 'event ' || MIN(seq), epoch FROM events WHERE source = 'worker'
                AND epoch IS NOT NULL GROUP BY run_id, epoch) w
        LEFT JOIN attempts a ON a.run_id = w.run_id AND a.epoch = w.epoch WHERE a.epoch IS NULL""",
    ),
    Invariant(
        "L4",
        "no running run has a lease that expired more than 30 seconds ago",
        """SELECT r.id FROM native r, clock
        WHERE r.status = 'running' AND r.lease_expires_at < clock.half_minute_ago""",
    ),
    Invariant(
        "L5",
        "the epoch of a log is the epoch of its run",
        """SELECT r.id FROM native r JOIN logs l ON l.id = r.id WHERE l.epoch <> r.lease_epoch""",
    ),
    Invariant(
        "L6",
        "the attempts of a run are numbered 1..n without gaps, except for epochs skipped by a restore",
        """SELECT q.run_id, 'attempt ' || q.epoch FROM (SELECT run_id, epoch, owner,
            LAG(epoch, 1, 0) OVER (PARTITION BY run_id ORDER BY epoch) AS before FROM attempts) q
        JOIN native r ON r.id = q.run_id WHERE q.epoch <> q.before + 1
            AND NOT (q.owner = 'post_restore' AND q.epoch > q.before)""",
    ),
    Invariant(
        "L7",
        "no worker has claimed an external run or written to it",
        """SELECT w.run_id, w.item FROM (
            SELECT id AS run_id, 'lease' AS item FROM external WHERE lease_owner IS NOT NULL OR lease_epoch <> 0
            UNION ALL SELECT run_id, 'attempt ' || epoch FROM attempts
            UNION ALL SELECT run_id, 'checkpoint ' || step_number FROM checkpoints
            UNION ALL SELECT run_id, 'event ' || seq FROM events WHERE source = 'worker') w
        JOIN external r ON r.id = w.run_id""",
    ),
    # Only a warning, because messages and pauses wait for the end of the model call, which may take longer. The code of
    # a remote run decides when it takes messages and signals.
    Invariant(
        "O1",
        "no command to a running run is pending for more than 30 seconds",
        """SELECT r.id, c.id FROM native r JOIN commands c ON c.run_id = r.id, clock
        WHERE r.status = 'running' AND c.applied_at IS NULL
            AND (r.code_version IS NULL OR c.type IN ('pause', 'stop')) AND c.received_at < clock.half_minute_ago""",
        warning_only=True,
    ),
    Invariant(
        "O2",
        "an ended run has no pending commands, and a paused run no pending pause or stop",
        """SELECT r.id, c.id FROM runs r JOIN commands c ON c.run_id = r.id
        WHERE c.applied_at IS NULL AND (r.ended OR (r.status = 'paused' AND c.type IN ('pause', 'stop')))""",
    ),
)

MESSAGE_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "M1",
        "the messages of a run have the positions 1..n, rolled-back ones included: none was deleted",
        """SELECT run_id FROM messages GROUP BY run_id HAVING MIN(position) <> 1 OR MAX(position) <> COUNT(*)""",
    ),
    Invariant(
        "M2",
        "a step has at most one active model response",
        """SELECT run_id, step_number FROM messages WHERE role = 'assistant' AND rolled_back_at IS NULL
        GROUP BY run_id, step_number HAVING COUNT(*) > 1""",
    ),
    Invariant(
        "M3",
        "a model call started only after every earlier tool call had its result",
        """SELECT a.run_id, a.id FROM messages a JOIN native r ON r.id = a.run_id
        JOIN open_calls o ON o.run_id = a.run_id AND o.step < a.step_number
        WHERE a.role = 'assistant' AND a.rolled_back_at IS NULL""",
    ),
    Invariant(
        "M4",
        "an ended tool call of an active message has an active result in the same run and step",
        """SELECT t.run_id, t.id FROM calls t
        JOIN agent_run_messages m ON m.id = t.message_id AND m.rolled_back_at IS NULL
        LEFT JOIN agent_run_messages x ON x.id = t.result_message_id AND x.run_id = t.run_id
            AND x.step_number = t.step_number AND x.role = 'tool_result' AND x.rolled_back_at IS NULL
        WHERE x.id IS NULL AND (t.status IN ('completed', 'error', 'denied') OR t.result_message_id IS NOT NULL)""",
    ),
    Invariant(
        "M5",
        "an active tool result belongs to exactly one tool call",
        """SELECT m.run_id, m.id FROM messages m
        LEFT JOIN (SELECT result_message_id, COUNT(*) AS n FROM calls WHERE result_message_id IS NOT NULL
            GROUP BY result_message_id) t ON t.result_message_id = m.id
        WHERE m.role = 'tool_result' AND m.rolled_back_at IS NULL AND COALESCE(t.n, 0) <> 1""",
    ),
    Invariant(
        "M6",
        "a run with rolled-back messages has a run.rolled_back event",
        """SELECT m.run_id, m.id FROM messages m WHERE m.rolled_back_at IS NOT NULL
            AND m.run_id NOT IN (SELECT run_id FROM events WHERE type = 'run.rolled_back')""",
    ),
    Invariant(
        "M7",
        "a message whose tool may have had an effect is never rolled back",
        """SELECT t.run_id, t.message_id FROM calls t JOIN agent_run_messages m ON m.id = t.message_id
        WHERE m.rolled_back_at IS NOT NULL AND t.starts > 0""",
    ),
    Invariant("M8", "the tool calls in an active response match the rows of its tool calls"),
    Invariant("W6", "the content of a message matches its stored SHA-256 digest"),
)

TOOL_CALL_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "T1",
        "a tool call belongs to an assistant message of its run and step",
        """SELECT t.run_id, t.id FROM calls t JOIN agent_run_messages m ON m.id = t.message_id
        WHERE t.run_id <> m.run_id OR t.step_number <> m.step_number OR m.role <> 'assistant'""",
    ),
    Invariant(
        "T2a",
        "an idempotency key belongs to one tool call",
        """SELECT MIN(CAST(run_id AS VARCHAR(36))), idempotency_key FROM calls WHERE idempotency_key IS NOT NULL
        GROUP BY idempotency_key HAVING COUNT(*) > 1""",
    ),
    Invariant(
        "T2b",
        "an idempotent tool call has an idempotency key",
        """SELECT run_id, id FROM calls WHERE effect = 'idempotent' AND idempotency_key IS NULL""",
    ),
    Invariant(
        "T3",
        "an at_most_once tool call was started again only as often as a person chose to",
        """SELECT t.run_id, t.id FROM calls t LEFT JOIN (SELECT run_id, ref_id, COUNT(*) AS n FROM events
            WHERE (type IN ('approval.resolved', 'tool.outcome_resolved') AND decision = 'retry')
                OR type = 'retry.scheduled' GROUP BY run_id, ref_id) e
            ON e.run_id = t.run_id AND e.ref_id = t.id
        WHERE t.effect = 'at_most_once' AND t.starts > 1 + COALESCE(e.n, 0)""",
    ),
    Invariant(
        "T4",
        "the status, the starts and the times of a tool call are consistent",
        """SELECT run_id, id FROM calls WHERE (status IN ('planned', 'denied') AND starts > 0)
            OR (status IN ('running', 'completed', 'unknown') AND starts = 0)
            OR (status IN ('completed', 'error') AND finished_at IS NULL)
            OR (starts > 0 AND started_at IS NULL)
            OR (status NOT IN ('planned', 'running') AND finished_at < started_at)""",
    ),
    Invariant(
        "T5",
        "a denied tool call was blocked, rejected, rolled back, or open when its run ended or paused",
        """SELECT t.run_id, t.id FROM calls t JOIN native r ON r.id = t.run_id
        JOIN agent_run_messages m ON m.id = t.message_id AND m.rolled_back_at IS NULL
        LEFT JOIN event_counts e ON e.run_id = t.run_id AND e.ref_id = t.id
            AND e.type IN ('safety.block', 'approval.resolved')
        WHERE t.status = 'denied' AND e.n IS NULL AND r.status NOT IN ('stopped', 'paused', 'failed', 'resumed')
            AND t.run_id NOT IN (SELECT run_id FROM events WHERE type = 'policy.applied')""",
    ),
    Invariant(
        "T7",
        "a run waits while the outcome of a tool call is unknown and not resolved",
        """SELECT t.run_id, t.id FROM calls t JOIN native r ON r.id = t.run_id
        WHERE t.status = 'unknown' AND t.result_message_id IS NULL AND t.finished_at IS NOT NULL
            AND NOT (r.status = 'waiting' AND r.status_reason = 'unknown_tool')""",
    ),
    Invariant(
        "T8",
        "a tool call that has ended has an output or an error",
        """SELECT t.run_id, t.id FROM calls t
        WHERE NOT t.has_output
            AND (t.status IN ('completed', 'error', 'denied') OR t.result_message_id IS NOT NULL)""",
    ),
    Invariant(
        "T6",
        "no tool call is open in a run that ended for good",
        """SELECT r.id, t.id FROM runs r JOIN open_calls o ON o.run_id = r.id JOIN calls t ON t.run_id = r.id
        WHERE r.ended AND (r.source = 'native' OR r.status_reason <> 'abandoned')
            AND t.step_number >= o.step AND (t.status IN ('planned', 'running')
            OR (t.status = 'unknown' AND t.result_message_id IS NULL))""",
    ),
    Invariant(
        "T9",
        "an approval is pending as long as its run waits for it",
        """SELECT r.id, a.id FROM runs r LEFT JOIN approvals a ON a.run_id = r.id AND a.state = 'pending'
        WHERE (r.source = 'native' OR a.id IS NOT NULL)
            AND (a.id IS NOT NULL) <> (r.status = 'waiting' AND r.status_reason = 'approval')""",
    ),
    # The program of a session decides itself which calls run. Earlier versions ran the calls of such responses.
    Invariant(
        "T10",
        "a call of a refused response was not started",
        """SELECT t.run_id, t.id FROM calls t JOIN native r ON r.id = t.run_id AND r.session_id = ''
        JOIN messages m ON m.id = t.message_id
        WHERE m.finish_reason = 'content_filter' AND t.starts > 0 AND EXISTS (
            SELECT 1 FROM events e WHERE e.run_id = r.id AND e.error_type = 'answer_refused')""",
    ),
)
