"""Crash points in the order in which a step meets them (runs/chaos.py has all). Loads nothing of Django."""

from __future__ import annotations

#: Before the step's commit; the others belong to the last committed step.
BEFORE_THE_COMMIT = (
    "model.before_start",
    "model.before_call",
    "model.streaming",
    "model.answered",
    "turn.in_transaction",
    "turn.commit_sent",
)
IN_A_STEP = (
    *BEFORE_THE_COMMIT,
    "turn.committed",
    "hooks.before",
    "hooks.decided",
    "tool.before_start",
    "tool.marked_running",
    "tool.running",
    "tool.returned",
    "result.in_transaction",
    "result.committed",
    "tool.next",
    "checkpoint.before",
    "checkpoint.in_transaction",
    "checkpoint.committed",
    "end.before",
    "end.in_transaction",
    "end.committed",
)
#: Where a worker can be lost and another can take the run at once: no transaction of it is open.
OUTSIDE_TRANSACTIONS = (
    "claim.committed",
    "model.before_start",
    "model.before_call",
    "model.streaming",
    "model.answered",
    "turn.commit_sent",
    "turn.committed",
    "hooks.before",
    "hooks.decided",
    "tool.before_start",
    "tool.marked_running",
    "tool.returned",
    "result.committed",
    "tool.next",
    "checkpoint.before",
    "checkpoint.committed",
    "end.before",
)
#: The points at which SQLite is tested: between two transactions, within one, and around the effect of a tool.
#: PostgreSQL is tested at all of them: a site on SQLite has a single process.
ON_SQLITE = (
    "claim.committed",
    "model.answered",
    "turn.in_transaction",
    "turn.committed",
    "tool.returned",
    "checkpoint.in_transaction",
)
