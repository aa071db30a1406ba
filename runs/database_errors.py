"""Classifies database errors: errors that affect all work, and errors that mean that writes are unavailable."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import DataError, Error, IntegrityError, InterfaceError, InternalError, OperationalError

from agentops.base.http.storage_faults import PG_ENDED_SESSION, fault_of

log = logging.getLogger(__name__)
#: The errors on which a step waits and continues. `raise_unless_storage_error` raises other kinds again.
STORAGE_ERRORS = (OperationalError, InterfaceError, InternalError)
#: SQLSTATEs of cancelled or slow statements, idle or slow transactions, and server limits exceeded by a statement.
OF_ONE_TRANSACTION = PG_ENDED_SESSION | {"57014", "54000", "54001", "54011", "54023"}


def raise_unless_storage_error(error: Error) -> None:
    """Raise `error` again if it is an internal error of another kind, which waiting would not fix."""
    if fault_of(error) is None:
        raise error


def concerns_all(error: Exception) -> bool:
    """Return whether the database has failed, so that other rows would fail too; not if it refused one row's values."""
    return isinstance(error, Error) and not isinstance(error, DataError | IntegrityError)


def concerns_statement(error: BaseException) -> bool:
    """Return whether a database error concerns only one transaction, which took too long or was too large.

    The next transaction can succeed.
    """
    return getattr(error.__cause__, "sqlstate", None) in OF_ONE_TRANSACTION


def done_alone(act: Callable[[], bool], failure: str, **facts: str) -> bool:
    """Return the result of `act` for one row of many. Logs an error as `failure`, so that other rows are not blocked.

    Returns False after an error, and raises an error that affects all rows.
    """
    try:
        return act()
    except Exception as error:
        if concerns_all(error):
            raise
        log.exception(failure, extra=facts)
        return False
