"""Checks all invariants and reports the violated ones. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from runs.upkeep.invariants.flow_invariants import FLOW_INVARIANTS
from runs.upkeep.invariants.invariant import Invariant, Violation
from runs.upkeep.invariants.invariant_sql import LISTED, CheckTimedOut, Clock, find_violations, snapshot
from runs.upkeep.invariants.lease_invariants import LEASE_INVARIANTS
from runs.upkeep.invariants.log_invariants import LOG_INVARIANTS
from runs.upkeep.invariants.message_content import check_message_contents
from runs.upkeep.invariants.message_invariants import MESSAGE_INVARIANTS
from runs.upkeep.invariants.run_invariants import RUN_INVARIANTS
from runs.upkeep.invariants.schema_state import pending_migrations
from runs.upkeep.invariants.tool_call_invariants import TOOL_CALL_INVARIANTS

INVARIANTS: tuple[Invariant, ...] = (
    *LOG_INVARIANTS,
    *MESSAGE_INVARIANTS,
    *TOOL_CALL_INVARIANTS,
    *RUN_INVARIANTS,
    *LEASE_INVARIANTS,
    *FLOW_INVARIANTS,
)
#: What is reported instead of violations while migrations are missing.
UPGRADE = Invariant(
    "migrations",
    "the database is being upgraded and was not checked: run `agentops migrate`, then check again",
    warning_only=True,
)
_CONTENT_INVARIANTS = {invariant.name: invariant for invariant in INVARIANTS if not invariant.sql}


@dataclass(frozen=True, slots=True)
class Report:
    """The violations, and the names of the invariants that were not checked within the time limit."""

    violations: list[Violation]
    unchecked: list[str]


def check(run_id: UUID | None = None) -> list[Violation]:
    """Check the invariants of all runs or of one, and return the violations."""
    return check_within(run_id).violations


def check_within(run_id: UUID | None = None, *, within_s: float | None = None) -> Report:
    """Check the invariants within a time limit in seconds. None: unlimited.

    During an upgrade, nothing is checked and the only finding is a warning: rows that a migration has not changed yet
    violate invariants of the new version, and columns may be missing.
    """
    clock = Clock(within_s)
    unchecked = [invariant.name for invariant in INVARIANTS]
    if pending := pending_migrations():
        return Report([_violation(UPGRADE, pending)], unchecked)
    violations = []
    with snapshot():
        try:
            for invariant, ids in _answers(run_id, clock):
                unchecked.remove(invariant.name)
                if ids:
                    violations.append(_violation(invariant, ids))
        except CheckTimedOut:
            pass
    return Report(violations, unchecked)


def _answers(run_id: UUID | None, clock: Clock) -> Iterator[tuple[Invariant, list[str]]]:
    for invariant in INVARIANTS:
        if invariant.sql:
            yield invariant, find_violations(invariant.sql, run_id, clock)
    for name, ids in check_message_contents(run_id, clock).items():
        yield _CONTENT_INVARIANTS[name], ids


def _violation(invariant: Invariant, ids: Sequence[str]) -> Violation:
    listed = tuple(ids[:LISTED])
    return Violation(invariant.name, listed, invariant.says, invariant.warning_only, more=len(ids) > LISTED)
