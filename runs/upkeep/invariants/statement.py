"""What a statement about the stored rows is, and what is known of one that does not hold.

The statements themselves are in the modules named `of_…`, one family each.
Their SQL is that of Postgres 15 and SQLite alike, and speaks of the names that asking.py gives to the tables.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invariant:
    """A statement, and the SQL that finds what contradicts it: rows of a run's id and, within the run, an item."""

    name: str
    says: str
    #: Empty where Python looks (see content.py).
    sql: str = ""
    #: Found, told, but no reason to call the data broken.
    warning_only: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    #: "<run id>" or "<run id>/<item>", where an item is a row's id or an event's seq; at most `LISTED`.
    ids: tuple[str, ...]
    says: str
    warning_only: bool = False
    #: There are more than the listed ids.
    more: bool = False


def warned_of_foreign(name: str, says: str, sql: str) -> tuple[Invariant, Invariant]:
    """What we do not execute ourselves may be incomplete: there the statement is only a warning."""
    return (
        Invariant(name, says, sql.replace("{runs}", "native")),
        Invariant(f"{name} foreign", says, sql.replace("{runs}", "kept"), warning_only=True),
    )
