"""The reasons why the database accepts no writes: a full disk, a read-only database, or no answer."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import Error, InterfaceError, InternalError, OperationalError

#: SQLSTATEs of PostgreSQL. psycopg raises an internal error for a read-only server.
PG_DISK_FULL, PG_READ_ONLY = "53100", "25006"
#: SQLSTATEs of sessions that the server ended because a transaction was idle, or took, too long. psycopg raises
#: internal errors for these, and operational errors for all other ended sessions (57P01 to 57P05, class 08).
PG_ENDED_SESSION = frozenset({"25P03", "25P04"})
#: Free bytes below which an I/O error of SQLite means a full disk.
MIN_FREE_BYTES = 64 * 1024


@dataclass(frozen=True)
class StorageFault:
    """`reason` is for programs; `short` follows "the database cannot be used:"."""

    reason: str
    short: str
    advice: str


DISK_FULL = StorageFault(
    "disk_full",
    "its disk is full",
    "The disk of the database is full. Nothing was changed. Free disk space, then retry.",
)
READ_ONLY = StorageFault(
    "read_only", "it is read-only", "The database is read-only at the moment. Nothing was changed. Try again later."
)
NO_ANSWER = StorageFault(
    "no_answer",
    "it does not answer",
    "The database does not answer. Nothing was changed. Try again in 5 seconds.",
)


def fault_of(error: BaseException) -> StorageFault | None:
    """Return the fault of the database; None for other kinds of errors."""
    if not isinstance(error, Error):
        return None
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None)
    if state == PG_DISK_FULL:
        return DISK_FULL
    if state == PG_READ_ONLY:
        return READ_ONLY
    if state in PG_ENDED_SESSION:
        return NO_ANSWER
    if isinstance(error, InternalError) or not isinstance(error, OperationalError | InterfaceError):
        return None
    # The lowest byte of an extended code is the primary code.
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (
        code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and not _has_free_space()
    ):
        return DISK_FULL
    return READ_ONLY if code == sqlite3.SQLITE_READONLY else NO_ANSWER


def _has_free_space() -> bool:
    try:
        return shutil.disk_usage(Path(settings.DATABASES["default"]["NAME"]).parent).free >= MIN_FREE_BYTES
    except OSError:
        return True
