"""Invariants: statements that must hold for the stored rows after any crash. Checks them and reports violations.

Read-only. SQL cannot check the contents of messages: they are read once, as a stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from django.db import connection

from agentops.base.database.applied_migrations import UnusableSchema, missing_migrations
from runs.models import AgentRunMessage, AgentRunToolCall
from runs.providers import messages
from runs.upkeep.invariant_sql import MAX_LISTED, CheckTimedOut, Invariant, TimeLimit, find_violations, snapshot
from runs.upkeep.journal_invariants import JOURNAL_INVARIANTS
from runs.upkeep.log_invariants import FLOW_INVARIANTS, LOG_INVARIANTS
from runs.upkeep.run_invariants import RUN_INVARIANTS
from runs.upkeep.step_invariants import LEASE_INVARIANTS, MESSAGE_INVARIANTS, TOOL_CALL_INVARIANTS

__all__ = [
    "INVARIANTS",
    "MAX_LISTED",
    "UPGRADE",
    "Invariant",
    "Report",
    "Violation",
    "check",
    "check_within",
    "snapshot",
]

#: Messages held in memory at a time.
BATCH = 500


def check_message_contents(run_id: UUID | None, limit: TimeLimit) -> dict[str, list[str]]:
    """Return the IDs of the messages that violate an invariant, by the invariant's name. Raises `CheckTimedOut`."""
    violations: dict[str, list[str]] = {"M8": [], "W6": []}
    rows = AgentRunMessage.objects.filter(run__removed_at=None).order_by("run", "position")
    if run_id is not None:
        rows = rows.filter(run=run_id)
    stream = rows.only("run", "role", "content", "sha256", "rolled_back_at").iterator(chunk_size=BATCH)
    while batch := list(islice(stream, BATCH)):
        limit.remaining_s()
        _add(violations["W6"], (_id(row) for row in batch if bytes(row.sha256) != messages.sha256(row.content)))
        answers = [row for row in batch if row.role == AgentRunMessage.Role.ASSISTANT and row.rolled_back_at is None]
        stored = _stored_calls(answers)
        _add(violations["M8"], (_id(row) for row in answers if _requested_calls(row) != stored.get(row.pk, Counter())))
    return violations


def _add(ids: list[str], more: Iterable[str]) -> None:
    """Add IDs to a list, up to a length of `MAX_LISTED` + 1."""
    ids += islice(more, MAX_LISTED + 1 - len(ids))


def _id(row: AgentRunMessage) -> str:
    return f"{row.run_id}/{row.pk}"


def _requested_calls(row: AgentRunMessage) -> Counter[tuple[str, str]]:
    """Return the ID and the tool of each call in an answer, cut to the length of their columns."""
    parts = [part for part in row.content.get("parts", ()) if part.get("part_kind") == "tool-call"]
    return Counter((part["tool_call_id"][:256], part["tool_name"][:256]) for part in parts)


def _stored_calls(answers: list[AgentRunMessage]) -> dict[UUID, Counter[tuple[str, str]]]:
    """Return the ID and the tool of each stored call, by the ID of its answer."""
    stored: dict[UUID, Counter[tuple[str, str]]] = {}
    calls = AgentRunToolCall.objects.filter(message__in=answers).values_list("message_id", "call_id", "tool_name")
    for message_id, call_id, tool_name in calls:
        stored.setdefault(message_id, Counter())[call_id, tool_name] += 1
    return stored


def pending_migrations() -> list[str]:
    """Return the migrations that the database lacks, or why this version cannot use it; empty if it is current."""
    try:
        return missing_migrations(connection)
    except UnusableSchema as error:
        return [str(error)]


INVARIANTS: tuple[Invariant, ...] = (
    *LOG_INVARIANTS,
    *MESSAGE_INVARIANTS,
    *TOOL_CALL_INVARIANTS,
    *RUN_INVARIANTS,
    *LEASE_INVARIANTS,
    *JOURNAL_INVARIANTS,
    *FLOW_INVARIANTS,
)
#: Reported instead of violations while migrations are missing.
UPGRADE = Invariant(
    "migrations",
    "the database is being upgraded and was not checked: run `agentops migrate`, then check again",
    warning_only=True,
)
_CONTENT_INVARIANTS = {invariant.name: invariant for invariant in INVARIANTS if not invariant.sql}


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant."""

    #: The name of the invariant.
    invariant: str
    #: At most `MAX_LISTED` texts "<run id>" or "<run id>/<item>". The item is the ID of a row, or the seq of an event.
    ids: tuple[str, ...]
    description: str
    warning_only: bool = False
    #: Whether there are more than the listed IDs.
    more: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The violations, and the names of the invariants that were not checked: see `check_within`."""

    violations: list[Violation]
    unchecked: list[str]


def check(run_id: UUID | None = None) -> list[Violation]:
    """Check the invariants of all runs or of one, and return the violations."""
    return check_within(run_id).violations


def check_within(run_id: UUID | None = None, *, within_s: float | None = None) -> Report:
    """Check the invariants of all runs or of one, within a time limit in seconds. None: unlimited.

    At the time limit, the remaining invariants stay unchecked. If migrations are missing, nothing is checked, and the
    only violation is the warning `UPGRADE`: rows that a migration has not changed yet violate invariants of the new
    version, and columns may be missing.
    """
    limit = TimeLimit(within_s)
    unchecked = [invariant.name for invariant in INVARIANTS]
    if pending := pending_migrations():
        return Report([_violation(UPGRADE, pending)], unchecked)
    violations = []
    with snapshot():
        try:
            for invariant, ids in _results(run_id, limit):
                unchecked.remove(invariant.name)
                if ids:
                    violations.append(_violation(invariant, ids))
        except CheckTimedOut:
            pass
    return Report(violations, unchecked)


def _results(run_id: UUID | None, limit: TimeLimit) -> Iterator[tuple[Invariant, list[str]]]:
    """Yield each invariant with the IDs that violate it. Raises `CheckTimedOut`."""
    for invariant in INVARIANTS:
        if invariant.sql:
            yield invariant, find_violations(invariant.sql, run_id, limit)
    for name, ids in check_message_contents(run_id, limit).items():
        yield _CONTENT_INVARIANTS[name], ids


def _violation(invariant: Invariant, ids: Sequence[str]) -> Violation:
    listed = tuple(ids[:MAX_LISTED])
    return Violation(invariant.name, listed, invariant.description, invariant.warning_only, more=len(ids) > MAX_LISTED)
