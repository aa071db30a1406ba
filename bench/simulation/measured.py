"""The measured points that the simulation has to reproduce. `python -m bench takeover` measures them again.

One and two worker processes (`agentops worker`, 8 slots) at the default settings, PostgreSQL 15 and Redis 7 on a
virtual machine with two cores that other programs kept busy (load 8 to 14). Each step has a model call of one second.
The model is fitted to the points of one worker; those of two workers are predicted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredPoint:
    """A figure, with its unit and how it was measured."""

    what: str
    workers: int
    value: float
    unit: str
    how: str


#: How the figures of each kind were measured.
_IDLE = "committed transactions in pg_stat_database over 20 s"
_BUSY = "committed transactions in pg_stat_database, mean of 20 s (83.8 and 179.5) and 15 s (79.8 and 164.9)"
_CLAIM = "mean of runs that were queued 0.51 s apart without hints"
_SLOT = "mean of twice as many runs as slots, 2 slots a worker: from the last first claim to each later one"
_KILL = "mean of four kill -9 of a worker with three runs; it is started again at once, or a second one takes them"

POINTS = (
    MeasuredPoint("transactions, idle", 1, 10.5, "per s", _IDLE),
    MeasuredPoint("transactions, idle", 2, 21.7, "per s", _IDLE),
    MeasuredPoint("transactions, 8 runs each", 1, 81.8, "per s", _BUSY),
    MeasuredPoint("transactions, 8 runs each", 2, 172.2, "per s", _BUSY),
    MeasuredPoint("queued to claimed, no hint", 1, 2.70, "s", f"{_CLAIM}; four starts, 160 runs"),
    MeasuredPoint("queued to claimed, no hint", 2, 1.72, "s", f"{_CLAIM}; mean of nine starts, 310 runs"),
    MeasuredPoint("wait for a slot, slices of 6 s", 1, 7.35, "s", f"{_SLOT}; six starts"),
    MeasuredPoint("wait for a slot, slices of 6 s", 2, 6.31, "s", f"{_SLOT}; two starts"),
    MeasuredPoint("kill to first claim", 1, 18.00, "s", _KILL),
    MeasuredPoint("kill to first claim", 2, 18.96, "s", _KILL),
    MeasuredPoint("kill to next step, first run", 1, 20.69, "s", _KILL),
    MeasuredPoint("kill to next step, first run", 2, 21.53, "s", _KILL),
    MeasuredPoint("kill to next step, third run", 1, 23.01, "s", _KILL),
    MeasuredPoint("kill to next step, third run", 2, 23.89, "s", _KILL),
)
