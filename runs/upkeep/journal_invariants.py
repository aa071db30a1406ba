"""The invariants of the journal of remote runs (J1 to J5). The SQL is as in step_invariants.py."""

from __future__ import annotations

from runs.upkeep.invariant_sql import Invariant

JOURNAL_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "J1",
        "only remote runs have a journal, and its steps are numbered 1..n without gaps",
        """SELECT q.run_id, 'step ' || q.position FROM (SELECT run_id, position,
            LAG(position, 1, 0) OVER (PARTITION BY run_id ORDER BY position) AS before FROM journal) q
        JOIN runs r ON r.id = q.run_id
        WHERE q.position <> q.before + 1 OR r.code_version IS NULL OR r.source <> 'native'""",
    ),
    Invariant(
        "J2",
        "a step has a value, pieces of one or an error, and a time of its end, exactly if it is done or failed",
        """SELECT run_id, 'step ' || position FROM journal
        WHERE (state = 'done') <> (has_value OR pieces > 0) OR (has_value AND pieces > 0)
            OR (state = 'failed') <> has_error OR (state = 'started') <> (finished_at IS NULL)""",
    ),
    Invariant(
        "J3",
        "a value in pieces has all of them",
        """SELECT s.run_id, 'step ' || s.position FROM journal s LEFT JOIN (
            SELECT step_id, COUNT(*) AS n FROM journal_pieces GROUP BY step_id) p
            ON p.step_id = s.id
        WHERE s.pieces > COALESCE(p.n, 0)""",
    ),
    Invariant(
        "J4",
        "a step has a call of its own run, unless it is a model call or takes messages",
        """SELECT s.run_id, 'step ' || s.position FROM journal s
        LEFT JOIN agent_run_tool_calls t ON t.id = s.call_id
        WHERE (s.kind IN ('model', 'messages')) <> (s.call_id IS NULL) OR t.run_id <> s.run_id""",
    ),
    Invariant(
        "J5",
        "the call of a step has its result once the step is done or failed",
        """SELECT s.run_id, 'step ' || s.position FROM journal s JOIN calls t ON t.id = s.call_id
        WHERE s.state <> 'started' AND t.result_message_id IS NULL""",
    ),
)
