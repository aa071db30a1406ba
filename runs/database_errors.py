"""Which errors of the database concern everybody, and which of them say that it is not writable at present."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import DataError, Error, IntegrityError, InterfaceError, InternalError, OperationalError

from agentops.base.http.storage_faults import PG_ENDED_SESSION, fault_of

log = logging.getLogger(__name__)
#: What a step catches, to wait and continue; `raise_unless_storage_error` raises those that are of another kind.
STORAGE_ERRORS = (OperationalError, InterfaceError, InternalError)
#: A statement that was cancelled or took too long, a transaction that was idle or took too long, and limits of the
#: server that a statement has exceeded.
OF_ONE_TRANSACTION = PG_ENDED_SESSION | {"57014", "54000", "54001", "54011", "54023"}


def raise_unless_storage_error(error: Error) -> None:
    """Raise `error` again if it is an internal error of another kind, which waiting would not fix."""
    if fault_of(error) is None:
        raise error


def concerns_all(error: Exception) -> bool:
    """Return whether the database has failed, and not just refused the values of one row: others would fail too."""
    return isinstance(error, Error) and not isinstance(error, DataError | IntegrityError)


def concerns_statement(error: BaseException) -> bool:
    """Return whether an error that looks like one of the database is about the work of one transaction: it took too
    long, or was too large. The next transaction can succeed."""
    return getattr(error.__cause__, "sqlstate", None) in OF_ONE_TRANSACTION


def done_alone(act: Callable[[], bool], failure: str, **facts: str) -> bool:
    """Return what `act` returns for one row of many. Its error is logged as `failure`, so that the others do not wait.

    Returns False then, and raises an error that concerns all.
    """
    try:
        return act()
    except Exception as error:
        if concerns_all(error):
            raise
        log.exception(failure, extra=facts)
        return False
