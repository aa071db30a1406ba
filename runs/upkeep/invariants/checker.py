"""Asks whether all statements hold, and says which do not.

Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from runs.upkeep.invariants.asking import LISTED, CheckTimedOut, Clock, ask, snapshot
from runs.upkeep.invariants.content import look_into_messages
from runs.upkeep.invariants.of_calls import OF_CALLS
from runs.upkeep.invariants.of_logs import OF_LOGS
from runs.upkeep.invariants.of_messages import OF_MESSAGES
from runs.upkeep.invariants.of_runs import OF_RUNS
from runs.upkeep.invariants.of_work import OF_WORK
from runs.upkeep.invariants.statement import Invariant, Violation

INVARIANTS: tuple[Invariant, ...] = (*OF_LOGS, *OF_MESSAGES, *OF_CALLS, *OF_RUNS, *OF_WORK)
_LOOKED_INTO = {invariant.name: invariant for invariant in INVARIANTS if not invariant.sql}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, and the names of the statements that nobody came to before time was up."""

    violations: list[Violation]
    unasked: list[str]


def check(run_id: UUID | None = None) -> list[Violation]:
    """What contradicts the invariants, of all runs or of one; empty where everything is in order."""
    return look(run_id).violations


def look(run_id: UUID | None = None, *, within_s: float | None = None) -> Report:
    """The same, within a time: what it was not enough for is named."""
    clock = Clock(within_s)
    left = [invariant.name for invariant in INVARIANTS]
    violations = []
    with snapshot():
        try:
            for invariant, ids in _answers(run_id, clock):
                left.remove(invariant.name)
                if ids:
                    violations.append(_violation(invariant, ids))
        except CheckTimedOut:
            pass
    return Report(violations, left)


def _answers(run_id: UUID | None, clock: Clock) -> Iterator[tuple[Invariant, list[str]]]:
    for invariant in INVARIANTS:
        if invariant.sql:
            yield invariant, ask(invariant.sql, run_id, clock)
    for name, ids in look_into_messages(run_id, clock).items():
        yield _LOOKED_INTO[name], ids


def _violation(invariant: Invariant, ids: Sequence[str]) -> Violation:
    shown = tuple(ids[:LISTED])
    return Violation(invariant.name, shown, invariant.says, invariant.warning_only, more=len(ids) > LISTED)
