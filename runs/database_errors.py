"""Classifies database errors: errors that affect all work, and errors that mean that writes are unavailable."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import DataError, Error, IntegrityError, InterfaceError, InternalError, OperationalError

from agentops.base.database.statements import PG_ENDED_SESSION, fault_of

log = logging.getLogger(__name__)
#: The errors after which a step waits and continues, unless `raise_unless_storage_error` raises them again.
STORAGE_ERRORS = (OperationalError, InterfaceError, InternalError)
#: SQLSTATEs of errors that concern one transaction: cancelled or slow statements, idle or slow transactions, and limits
#: of the server that a statement exceeds.
OF_ONE_TRANSACTION = PG_ENDED_SESSION | {"57014", "54000", "54001", "54011", "54023"}


def raise_unless_storage_error(error: Error) -> None:
    """Raise `error` again unless the storage has failed: waiting would not fix another error."""
    if fault_of(error) is None:
        raise error


def concerns_all(error: Exception) -> bool:
    """Return whether the database has failed, and so would fail for other rows too. False if it refused values."""
    return isinstance(error, Error) and not isinstance(error, DataError | IntegrityError)


def concerns_statement(error: BaseException) -> bool:
    """Return whether a database error concerns only one transaction, which took too long or was too large.

    The next transaction can succeed.
    """
    return getattr(error.__cause__, "sqlstate", None) in OF_ONE_TRANSACTION


def done_alone(act: Callable[[], bool], failure: str, **facts: str) -> bool:
    """Return the result of `act`, which handles one row of many. Errors are logged, so that they block no other row.

    Returns False after an error. `failure` is the text of the log line, `facts` are its fields. Raises errors of the
    database that concern all rows.
    """
    try:
        return act()
    except Exception as error:
        if concerns_all(error):
            raise
        log.exception(failure, extra=facts)
        return False
