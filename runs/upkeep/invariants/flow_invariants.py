"""The invariants of flow runs (F1 to F7)."""

from __future__ import annotations

from runs.upkeep.invariants.invariant import Invariant

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
