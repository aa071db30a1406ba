"""The invariants of leases and attempts (L1 to L7) and of commands (O1, O2)."""

from __future__ import annotations

from runs.upkeep.invariants.invariant import Invariant

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
