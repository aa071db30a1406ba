"""The types `Invariant` and `Violation`.

The invariants are defined in the modules named `…_invariants`. Their SQL is valid on PostgreSQL 15 and SQLite, and
selects from the subqueries that invariant_sql.py defines.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invariant:
    """A statement about the stored rows, and the SQL that selects violations: a run ID and an item of the run."""

    name: str
    #: The statement.
    says: str
    #: Empty if the invariant is checked by message_content.py.
    sql: str = ""
    #: Violations are reported but do not mean that the data is corrupt.
    warning_only: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant."""

    #: The name of the invariant.
    invariant: str
    #: "<run id>" or "<run id>/<item>", where the item is the ID of a row or the seq of an event. At most `LISTED`.
    ids: tuple[str, ...]
    says: str
    warning_only: bool = False
    #: Whether there are more than the listed IDs.
    more: bool = False
