"""The invariants of logs and events (E1 to E13), removed runs (X1, X2) and flow runs (F1 to F7).

Their SQL is valid on PostgreSQL 15 and SQLite, and selects from the subqueries that invariant_sql.py defines.
"""

from __future__ import annotations

from runs.upkeep.invariant_sql import Invariant

LOG_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "E1",
        "the events of a log are numbered 1..n without a gap",
        """SELECT run_id FROM events GROUP BY run_id
        HAVING MIN(seq) <> 1 OR MAX(seq) <> COUNT(*) OR COUNT(DISTINCT seq) <> COUNT(*)""",
    ),
    Invariant(
        "E2",
        "the counter of a log is the sequence number of its last event",
        """SELECT l.id FROM logs l LEFT JOIN (SELECT run_id, MAX(seq) AS last FROM events GROUP BY run_id) e
            ON e.run_id = l.id WHERE l.last_seq <> COALESCE(e.last, 0)""",
    ),
    Invariant(
        "E3",
        "an event_id is unique within its log",
        """SELECT run_id, event_id FROM events WHERE event_id IS NOT NULL
        GROUP BY run_id, event_id HAVING COUNT(*) > 1""",
    ),
    Invariant(
        "E4",
        "the first event of a run, and no other, is run.created",
        """SELECT r.id, e.seq FROM runs r
        LEFT JOIN events e ON e.run_id = r.id AND (e.seq = 1 OR e.type = 'run.created')
        WHERE e.seq IS NULL OR e.seq <> 1 OR e.type <> 'run.created'""",
    ),
    Invariant(
        "E5",
        "a run that ended has exactly one final event, matching its status, and other runs have none",
        """SELECT r.id FROM runs r LEFT JOIN endings e ON e.run_id = r.id
        WHERE COALESCE(e.n, 0) <> CASE WHEN r.ended THEN 1 ELSE 0 END OR e.type <> 'run.' || r.status""",
    ),
    Invariant(
        "E6",
        "after the final event of a run there are only late events",
        """SELECT e.run_id, e.seq FROM events e JOIN endings t ON t.run_id = e.run_id
        WHERE e.seq > t.seq AND NOT e.late""",
    ),
    Invariant(
        "E7",
        "the epochs of worker events never decrease: a fenced worker wrote nothing more",
        """SELECT run_id, seq FROM (SELECT run_id, seq, epoch,
            LAG(epoch) OVER (PARTITION BY run_id ORDER BY seq) AS before FROM events WHERE source = 'worker') q
        WHERE epoch < before""",
    ),
    Invariant(
        "E8a",
        "each message has exactly one message.added event",
        """SELECT m.run_id, m.id FROM messages m LEFT JOIN event_counts e
            ON e.run_id = m.run_id AND e.ref_id = m.id AND e.type = 'message.added' WHERE COALESCE(e.n, 0) <> 1""",
    ),
    Invariant(
        "E8b",
        "each message.added event, unless it came after the end, refers to a message of its run",
        """SELECT e.run_id, e.seq FROM events e LEFT JOIN messages m ON m.id = e.ref_id AND m.run_id = e.run_id
        WHERE e.type = 'message.added' AND NOT e.late AND m.id IS NULL""",
    ),
    Invariant(
        "E9a",
        "a tool call has one tool.end event if it has a result, and none otherwise",
        """SELECT t.run_id, t.id FROM calls t
        LEFT JOIN event_counts e ON e.run_id = t.run_id AND e.ref_id = t.id AND e.type = 'tool.end'
        WHERE COALESCE(e.n, 0) <> CASE WHEN t.status IN ('completed', 'error', 'denied')
            OR (t.status = 'unknown' AND t.result_message_id IS NOT NULL) THEN 1 ELSE 0 END""",
    ),
    Invariant(
        "E9b",
        "a tool call has one tool.start event for each start",
        """SELECT t.run_id, t.id FROM calls t
        LEFT JOIN event_counts e ON e.run_id = t.run_id AND e.ref_id = t.id AND e.type = 'tool.start'
        WHERE COALESCE(e.n, 0) <> t.starts""",
    ),
    Invariant(
        "E10",
        "no model turn is open in a run that ended or paused",
        """SELECT r.id FROM native r JOIN (SELECT run_id, SUM(CASE type WHEN 'llm.turn.start' THEN 1 ELSE -1 END) AS n
            FROM events WHERE type IN ('llm.turn.start', 'llm.turn.end', 'llm.turn.abandoned') AND NOT late
            GROUP BY run_id) e ON e.run_id = r.id
        WHERE (r.ended OR r.status = 'paused') AND e.n <> 0""",
    ),
    Invariant(
        "E11",
        "a run that failed, or paused at its step limit, has an error event of that type",
        """SELECT r.id FROM native r
        WHERE (r.status = 'failed' OR (r.status = 'paused' AND r.status_reason = 'max_steps'))
            AND r.id NOT IN (SELECT e.run_id FROM events e JOIN native f ON f.id = e.run_id WHERE e.type = 'error'
                AND NOT e.late AND e.error_type = CASE f.status WHEN 'failed' THEN f.status_reason
                    ELSE 'error_max_turns' END)""",
    ),
    Invariant(
        "E12",
        "each event of a native run has a node ID (outside of flows, the agent)",
        """SELECT e.run_id, e.seq FROM events e JOIN native r ON r.id = e.run_id WHERE e.node_id = ''""",
    ),
    Invariant(
        "E13",
        "each event has its log; each message, call, usage and checkpoint has its run, and each call its answer",
        """SELECT e.run_id, MIN(e.seq) FROM events e LEFT JOIN logs l ON l.id = e.run_id
            WHERE l.id IS NULL GROUP BY e.run_id
        UNION ALL SELECT o.run_id, COUNT(*) FROM (
            SELECT run_id FROM messages UNION ALL SELECT run_id FROM calls UNION ALL SELECT run_id FROM usages
            UNION ALL SELECT run_id FROM checkpoints) o LEFT JOIN runs r ON r.id = o.run_id
            WHERE r.id IS NULL GROUP BY o.run_id
        UNION ALL SELECT t.run_id, t.step_number FROM calls t LEFT JOIN messages m ON m.id = t.message_id
            WHERE m.id IS NULL""",
    ),
    Invariant(
        "X1",
        "only the tombstone of a removed run is left",
        """SELECT l.id FROM logs l JOIN timeline_tombstone t ON t.id = l.id""",
    ),
    Invariant(
        "X2",
        "a hidden run has a tombstone",
        """SELECT r.id FROM runs r WHERE r.removed_at IS NOT NULL""",
    ),
)

FLOW_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "F1",
        "the first event of a flow run, and no other, is run.created",
        """SELECT f.id, e.seq FROM flow_rows f
        LEFT JOIN events e ON e.run_id = f.id AND (e.seq = 1 OR e.type = 'run.created')
        WHERE e.seq IS NULL OR e.seq <> 1 OR e.type <> 'run.created'""",
    ),
    Invariant(
        "F2",
        "a flow run that ended has exactly one final event, matching its status; others have none",
        """SELECT f.id FROM flow_rows f LEFT JOIN endings e ON e.run_id = f.id
        WHERE COALESCE(e.n, 0) <> CASE WHEN f.ended THEN 1 ELSE 0 END OR e.type <> 'run.' || f.status""",
    ),
    Invariant(
        "F3",
        "a flow starts at most once, and completes exactly when its run has ended",
        """SELECT f.id FROM flow_rows f
        LEFT JOIN (SELECT run_id, SUM(CASE WHEN type = 'flow.started' THEN 1 ELSE 0 END) AS starts,
            SUM(CASE WHEN type = 'flow.completed' THEN 1 ELSE 0 END) AS ends
            FROM events WHERE type IN ('flow.started', 'flow.completed') GROUP BY run_id) e ON e.run_id = f.id
        WHERE COALESCE(e.starts, 0) > 1 OR COALESCE(e.ends, 0) <> CASE WHEN f.ended THEN 1 ELSE 0 END""",
    ),
    Invariant(
        "F4",
        "a flow run that ended has no open visits",
        """SELECT f.id, v.id FROM flow_rows f JOIN visits v ON v.flow_run_id = f.id
        WHERE f.ended AND v.ended_at IS NULL""",
    ),
    Invariant(
        "F5",
        "an open visit of an agent, a tool or a question has a run",
        """SELECT v.flow_run_id, v.id FROM visits v
        WHERE v.ended_at IS NULL AND v.kind <> 'constant' AND v.session_id IS NULL""",
    ),
    Invariant(
        "F6",
        "the run of a visit belongs to the flow run of the visit",
        """SELECT v.flow_run_id, v.id FROM visits v JOIN runs r ON r.id = v.session_id
        WHERE r.flow_run_id IS NULL OR r.flow_run_id <> v.flow_run_id""",
    ),
    Invariant(
        "F7",
        "each run of a flow run is that of a visit, or continues it",
        """SELECT r.id FROM runs r LEFT JOIN flow_visits v ON v.session_id = r.root_run_id
            AND v.flow_run_id = r.flow_run_id
        WHERE r.flow_run_id IS NOT NULL AND v.id IS NULL""",
    ),
)
