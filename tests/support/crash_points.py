"""Crash points in the order of their execution in a step (runs/chaos.py has all). Imports nothing from Django."""

from __future__ import annotations

#: Points before the step's commit. Work after the other points belongs to the last committed step.
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
#: Points at which no transaction of the run is open: if the worker dies here, another can claim the run at once.
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
#: The points tested on SQLite: between two transactions, within one, and around the effect of a tool. A site on SQLite
#: has a single process, so only PostgreSQL is tested at all points.
ON_SQLITE = (
    "claim.committed",
    "model.answered",
    "turn.in_transaction",
    "turn.committed",
    "tool.returned",
    "checkpoint.in_transaction",
)
