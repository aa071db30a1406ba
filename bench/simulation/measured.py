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
_BUSY = "committed transactions in pg_stat_database over 20 s"
_CLAIM = "mean of runs that were queued 0.51 s apart without hints"
_SLOT = "mean of twice as many runs as slots, 2 slots a worker: from the last first claim to each later one"
_KILL = "mean of four kill -9 of a worker with three runs; it is started again at once, or a second one takes them"

POINTS = (
    MeasuredPoint("transactions, idle", 1, 6.4, "per s", _IDLE),
    MeasuredPoint("transactions, idle", 2, 12.5, "per s", _IDLE),
    MeasuredPoint("transactions, 8 runs each", 1, 81.6, "per s", _BUSY),
    MeasuredPoint("transactions, 8 runs each", 2, 155.3, "per s", _BUSY),
    MeasuredPoint("queued to claimed, no hint", 1, 2.60, "s", f"{_CLAIM}; mean of eight starts, 320 runs"),
    MeasuredPoint("queued to claimed, no hint", 2, 1.66, "s", f"{_CLAIM}; mean of thirteen starts, 470 runs"),
    MeasuredPoint("wait for a slot, slices of 6 s", 1, 7.39, "s", f"{_SLOT}; two runs that waited"),
    MeasuredPoint("wait for a slot, slices of 6 s", 2, 5.54, "s", f"{_SLOT}; four runs that waited"),
    MeasuredPoint("kill to first claim", 1, 20.63, "s", _KILL),
    MeasuredPoint("kill to first claim", 2, 21.35, "s", _KILL),
    MeasuredPoint("kill to next step, first run", 1, 22.01, "s", _KILL),
    MeasuredPoint("kill to next step, first run", 2, 22.68, "s", _KILL),
    MeasuredPoint("kill to next step, third run", 1, 24.14, "s", _KILL),
    MeasuredPoint("kill to next step, third run", 2, 24.85, "s", _KILL),
)
